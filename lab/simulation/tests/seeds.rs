//! Seeds that must hold, and that must run the same every time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use simulation::{Fault, run};

#[test]
fn two_thousand_seeds_violate_no_invariant_and_inject_every_fault() {
    let mut injected = [0; Fault::COUNT];
    for seed in 0..2_000 {
        let report = run(seed, None, false).unwrap();
        if let Some(violation) = report.violation {
            panic!(
                "seed {seed}: {}\n    cargo run --bin simulation -- --seed {seed} --trace",
                violation.message
            );
        }
        for (sum, count) in injected.iter_mut().zip(report.injected) {
            *sum += count;
        }
    }
    for (fault, _) in Fault::ALL {
        assert!(injected[fault as usize] > 0, "{fault:?} was never injected");
    }
}

#[test]
fn same_seed_produces_same_history() {
    for seed in 0..50 {
        let first = run(seed, None, true).unwrap();
        // On another thread: the first run must leave no state that affects the second.
        let second = std::thread::spawn(move || run(seed, None, true).unwrap()).join().unwrap();
        assert_eq!(first.history, second.history, "seed {seed}");
        assert_eq!((first.hash, first.steps), (second.hash, second.steps), "seed {seed}");
    }
}

#[test]
fn different_seeds_produce_different_histories() {
    assert_ne!(run(1, None, false).unwrap().hash, run(2, None, false).unwrap().hash);
}
