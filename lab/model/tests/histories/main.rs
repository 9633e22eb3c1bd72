//! Recorded histories of the simulation are histories of the model. Those with a flaw are not.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on should say so and end"
)]

mod projection;

use std::thread;

use flaws::Flaw;
use model::{Action, System, accept};
use projection::{CHANNELS, Projection, RELAYS};
use simulation::{Entry, Options, run};

/// The projections of a history: the entries of each, and the first one that the model rejects.
fn follow(history: &[Entry]) -> impl Iterator<Item = (Vec<Action>, Option<usize>)> {
    Projection::all(history).into_iter().map(|projection| {
        let entries = projection.entries(history);
        let system = System::<RELAYS, CHANNELS>::unbounded(projection.by_seq());
        let rejected = accept(&system, &entries).err();
        (entries, rejected)
    })
}

/// Returns the number of projections and of entries.
fn assert_accepted(seeds: impl Iterator<Item = u64>) -> (usize, usize) {
    let (mut projections, mut count) = (0, 0);
    for seed in seeds {
        let options = Options { as_modelled: true, with_history: true, ..Options::default() };
        for (entries, rejected) in follow(&run(seed, options).unwrap().history) {
            if let Some(index) = rejected {
                panic!("seed {seed}: the model rejects the last of these entries: {:#?}", &entries[..=index]);
            }
            projections += 1;
            count += entries.len();
        }
    }
    (projections, count)
}

#[test]
fn histories_of_two_hundred_seeds_are_accepted() {
    let threads: Vec<_> =
        (0..2).map(|first| thread::spawn(move || assert_accepted((first..200).step_by(2)))).collect();
    let counts = threads.into_iter().map(|thread| thread.join().unwrap());
    let (projections, entries) = counts.reduce(|one, other| (one.0 + other.0, one.1 + other.1)).unwrap();
    println!("{projections} projections with {entries} entries");
    assert!(projections > 1_000 && entries > 100_000, "{projections} projections with {entries} entries");
}

#[test]
fn history_of_each_unsafe_flaw_is_rejected() {
    // A relay that never polls does nothing that the model cannot do: it does too little.
    for (flaw, _) in Flaw::modelled().filter(|(flaw, _)| *flaw != Flaw::WokenOnly) {
        // Nor does a history that is only unfinished at its end (I8).
        let violation = |seed: u64, with_history| {
            let options = Options { flaw: Some(flaw), as_modelled: true, with_history, ..Options::default() };
            let report = run(seed, options).unwrap();
            let violation = report.violation.filter(|violation| !violation.starts_with("I8"))?;
            Some((seed, violation, report.history))
        };
        // A projection holds committed events only: the publication of one that was rolled back contradicts none.
        let violating = (0..10_000).filter_map(|seed| violation(seed, false)).take(10);
        let rejected = violating.filter_map(|(seed, ..)| violation(seed, true)).find_map(
            |(seed, violation, history)| {
                let rejected = follow(&history).find_map(|(entries, rejected)| Some(entries[rejected?]))?;
                Some((seed, violation, rejected))
            },
        );
        let Some((seed, violation, rejected)) = rejected else {
            panic!("{flaw:?}: the model accepts ten histories that violate a safety invariant");
        };
        println!("{flaw:?}, seed {seed}: rejects {rejected:?} ({violation})");
    }
}
