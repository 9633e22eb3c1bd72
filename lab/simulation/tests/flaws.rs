//! Shows that the judge can fail: without any one protection, some seed violates the invariant that it guards.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use flaws::Flaw;
use simulation::{Options, run};

#[test]
fn judge_catches_every_flaw_by_the_invariant_it_violates() {
    for (flaw, expected) in Flaw::simulated() {
        let options = Options { flaw: Some(flaw), with_log: expected.with_log, ..Options::default() };
        let violation = |seed| Some((seed, run(seed, options).unwrap().violation?));
        let Some((seed, violation)) = (0..expected.within_seeds).find_map(violation) else {
            panic!("{flaw:?} survived {} seeds", expected.within_seeds);
        };
        println!("{}: seed {seed}: {violation}", flaw.name());
        let is_expected = expected.breaks.iter().any(|invariant| violation.starts_with(invariant));
        assert!(is_expected, "{flaw:?} was not caught by one of {:?}: {violation}", expected.breaks);
    }
}
