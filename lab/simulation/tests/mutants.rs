//! Shows that the judge can fail: without any one protection, some seed violates the invariant that it guards.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use simulation::{Mutant, run};

/// The number of seeds within which each mutant must be caught, measured and rounded up generously, and by which
/// invariants.
fn expected(mutant: Mutant) -> (u64, &'static [&'static str]) {
    match mutant {
        // The event is lost (I3); and its successor is sent without knowing whether it has arrived (I6).
        Mutant::MarkBeforeConfirm => (20, &["I3", "I6"]),
        Mutant::ConfirmsOff => (50, &["I3"]),
        // The returned event is never published (I3), and if its aggregate has a later one, that is (I6).
        Mutant::ReturnTrustedToItsConfirm => (2_000, &["I3", "I6"]),
        Mutant::SilenceIgnored => (10_000, &["I3"]),
        Mutant::NewIdPerAttempt => (50, &["I2"]),
        Mutant::AckBeforeCommit => (20, &["I3"]),
        Mutant::DedupeOutsideTransaction => (100, &["I3"]),
        Mutant::CompetingConsumers => (100, &["I6"]),
        Mutant::UnequalPrefetch => (200, &["I6"]),
        Mutant::LaterEventsApplied => (200, &["I6"]),
        Mutant::SkipLockedOnRows => (200, &["I6"]),
        // An unpublished event before the cursor holds back no other: later events overtake a refused one (I6), and an
        // event that is committed late is never read (I8).
        Mutant::CursorOverSeq => (50, &["I6", "I8"]),
        Mutant::OlderEventIgnored => (200, &["I6"]),
        Mutant::DirtyRead => (50, &["I2"]),
        Mutant::WokenOnly => (100, &["I8"]),
    }
}

#[test]
fn judge_catches_every_mutant_by_the_invariant_it_violates() {
    for mutant in Mutant::ALL {
        let (within, invariants) = expected(mutant);
        let caught =
            (0..within).find_map(|seed| Some((seed, run(seed, Some(mutant), false).unwrap().violation?)));
        let Some((seed, violation)) = caught else {
            panic!("{mutant:?} survived {within} seeds");
        };
        println!("{mutant:?}: seed {seed}: {}", violation.message);
        let expected = invariants.iter().any(|invariant| violation.message.starts_with(invariant));
        assert!(expected, "{mutant:?} was not caught by one of {invariants:?}: {}", violation.message);
    }
}
