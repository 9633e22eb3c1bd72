//! Seeds that must hold, and that must run the same every time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use std::{collections::BTreeSet, process::Command};

use clap::ValueEnum;
use simulation::{Fault, Options, Report, Sometimes, run};

/// The report of a seed that holds.
fn held(seed: u64, with_log: bool) -> Report {
    let report = run(seed, Options { with_log, ..Options::default() }).unwrap();
    let options = if with_log { " --log" } else { "" };
    if let Some(violation) = report.violation {
        panic!("seed {seed}: {violation}\n    cargo run --bin simulation -- --seed {seed}{options} --trace");
    }
    report
}

#[test]
fn two_thousand_seeds_violate_no_invariant_and_inject_every_fault() {
    let (mut injected, mut reached) = (BTreeSet::new(), BTreeSet::new());
    for seed in 0..Sometimes::SEEDS {
        let report = held(seed, false);
        injected.extend(report.injected.into_keys());
        reached.extend(report.reached.into_keys());
    }
    for state in Sometimes::value_variants() {
        assert!(reached.contains(state), "no seed reached {state:?}");
    }
    for fault in Fault::value_variants() {
        assert!(injected.contains(fault), "{fault:?} was never injected");
    }
}

#[test]
fn thousand_seeds_violate_no_invariant_when_relays_read_the_log() {
    (0..1_000).for_each(|seed| drop(held(seed, true)));
}

#[test]
fn same_seed_produces_same_history_and_another_seed_another() {
    let history = |seed| run(seed, Options { with_history: true, ..Options::default() }).unwrap().history;
    for seed in 0..50 {
        let first = history(seed);
        // On another thread: the first run must leave no state that affects the second.
        let second = std::thread::spawn(move || history(seed)).join().unwrap();
        assert_eq!(first, second, "seed {seed}");
        assert_ne!(first, history(seed + 1), "seed {seed}");
    }
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
