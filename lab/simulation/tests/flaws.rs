//! Shows that the judge can fail: without any one protection, some seed violates the invariant that it guards.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use flaws::Flaw;
use simulation::{run, run_with_log};

#[test]
fn judge_catches_every_flaw_by_the_invariant_it_violates() {
    let with_log = Flaw::simulated_with_log().map(|flaw| (flaw, true));
    for ((flaw, expected), reads_log) in Flaw::simulated().map(|flaw| (flaw, false)).chain(with_log) {
        let run = if reads_log { run_with_log } else { run };
        let violation = |seed| Some((seed, run(seed, Some(flaw), false).unwrap().violation?));
        let Some((seed, violation)) = (0..expected.within_seeds).find_map(violation) else {
            panic!("{flaw:?} survived {} seeds", expected.within_seeds);
        };
        println!("{}: seed {seed}: {}", flaw.name(), violation.message);
        let is_expected = expected.breaks.iter().any(|invariant| violation.message.starts_with(invariant));
        assert!(
            is_expected,
            "{flaw:?} was not caught by one of {:?}: {}",
            expected.breaks, violation.message
        );
    }
}
