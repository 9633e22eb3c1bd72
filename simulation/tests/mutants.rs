//! The judge can fail: with any one protection taken away, some seed soon breaks the promise that it kept.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use simulation::{Mutant, run};

/// Within how many seeds each mutant has to be caught, and by which promise. Measured, and rounded up generously.
fn expected(mutant: Mutant) -> (u64, &'static [&'static str]) {
    match mutant {
        Mutant::MarkBeforeConfirm => (20, &["I3"]),
        Mutant::ConfirmsOff => (50, &["I3"]),
        Mutant::ReturnTrustedToItsConfirm => (1_000, &["I3"]),
        Mutant::SilenceIgnored => (3_000, &["I3"]),
        Mutant::NewIdPerAttempt => (50, &["I2"]),
        Mutant::AckBeforeCommit => (20, &["I3"]),
        Mutant::DedupeOutsideTransaction => (100, &["I3"]),
        Mutant::CompetingConsumers => (100, &["I6"]),
        Mutant::SkipLockedOnRows => (200, &["I6"]),
        // What it has passed and not published holds back nothing: a refused event is overtaken, a late one forgotten.
        Mutant::CursorOverSeq => (50, &["I6", "I8"]),
        Mutant::OlderEventIgnored => (200, &["I6"]),
        Mutant::DirtyRead => (50, &["I2"]),
        Mutant::WokenOnly => (100, &["I8"]),
    }
}

#[test]
fn each_mutant_is_caught_by_the_promise_that_it_breaks() {
    for mutant in Mutant::ALL {
        let (within, promises) = expected(mutant);
        let caught =
            (0..within).find_map(|seed| Some((seed, run(seed, Some(mutant), false).unwrap().violation?)));
        let Some((seed, violation)) = caught else {
            panic!("{mutant:?} survived {within} seeds");
        };
        println!("{mutant:?}: seed {seed}: {}", violation.what);
        let named = promises.iter().any(|promise| violation.what.starts_with(promise));
        assert!(named, "{mutant:?} was caught by another promise than {promises:?}: {}", violation.what);
    }
}
