//! Seeds that must hold, and that must run the same every time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use std::process::Command;

use simulation::{Fault, Sometimes, run, run_with_log};

#[test]
fn two_thousand_seeds_violate_no_invariant_and_inject_every_fault() {
    let (mut injected, mut reached) = ([0; Fault::COUNT], [0; Sometimes::ALL.len()]);
    for seed in 0..Sometimes::SEEDS {
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
        for (sum, count) in reached.iter_mut().zip(report.reached) {
            *sum += count;
        }
    }
    for state in Sometimes::ALL {
        assert!(reached[state as usize] > 0, "no seed reached {state:?}");
    }
    for (fault, _) in Fault::ALL {
        assert!(injected[fault as usize] > 0, "{fault:?} was never injected");
    }
}

#[test]
fn thousand_seeds_violate_no_invariant_when_relays_read_the_log() {
    for seed in 0..1_000 {
        if let Some(violation) = run_with_log(seed, None, false).unwrap().violation {
            panic!(
                "seed {seed}: {}\n    cargo run --bin simulation -- --log --seed {seed} --trace",
                violation.message
            );
        }
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

#[test]
fn run_that_cannot_reach_a_state_names_it_and_exits_with_2() {
    let mut simulation = Command::new(env!("CARGO_BIN_EXE_simulation"));
    simulation.args(["--without", "ReturnOnAnother", "--seeds", &Sometimes::SEEDS.to_string()]);
    let output = simulation.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(printed.ends_with("states that no seed reached: [ReturnOnNeighboursConfirm]\n"), "{printed}");
}
