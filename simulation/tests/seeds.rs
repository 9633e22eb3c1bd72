//! Seeds that must hold, the same every time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use simulation::{Fault, run};

#[test]
fn two_thousand_seeds_break_no_promise_and_meet_every_fault() {
    let mut struck = [0; Fault::COUNT];
    for seed in 0..2_000 {
        let report = run(seed, None, false).unwrap();
        if let Some(violation) = report.violation {
            panic!(
                "seed {seed}: {}\n    cargo run --release -p simulation -- --seed {seed} --trace",
                violation.what
            );
        }
        for (sum, more) in struck.iter_mut().zip(report.struck) {
            *sum += more;
        }
    }
    for (fault, _) in Fault::ALL {
        assert!(struck[fault as usize] > 0, "{fault:?} never struck");
    }
}

#[test]
fn a_seed_has_one_history() {
    for seed in 0..50 {
        let first = run(seed, None, true).unwrap();
        // On a thread of its own: nothing may be left over from the first run.
        let again = std::thread::spawn(move || run(seed, None, true).unwrap()).join().unwrap();
        assert_eq!(first.history, again.history, "seed {seed}");
        assert_eq!((first.hash, first.steps), (again.hash, again.steps), "seed {seed}");
    }
}

#[test]
fn different_seeds_have_different_histories() {
    assert_ne!(run(1, None, false).unwrap().hash, run(2, None, false).unwrap().hash);
}
