//! `cargo run --bin simulation -- --seeds 10000`: simulates many seeds and reports violated invariants.

use std::{
    collections::BTreeMap,
    io,
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::{Parser, ValueEnum};
use simulation::{Fault, Options, Report, Sometimes, run};

/// The number of violations whose seeds are printed.
const MAX_PRINTED_VIOLATIONS: usize = 20;

/// Simulates the real relay and the real consumer logic in memory, one run for each seed.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The number of seeds.
    #[arg(long, default_value_t = 10_000, conflicts_with = "seed")]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0, conflicts_with = "seed")]
    from: u64,
    /// Runs only this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Prints the history of the seed.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Leaves out one fault, for example ReturnOnAnother.
    #[arg(long)]
    without: Option<Fault>,
    /// The relays read the write-ahead log.
    #[arg(long, conflicts_with = "without")]
    log: bool,
    /// The number of threads. Each runs one seed at a time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
}

/// The sums over all seeds.
#[derive(Default)]
struct Totals {
    seeds: u64,
    counts: [u64; 5],
    simulated_time: Duration,
    injected: BTreeMap<Fault, u64>,
    reached: BTreeMap<Sometimes, u64>,
    violations: Vec<(u64, String)>,
}

fn add<K: Ord>(sums: &mut BTreeMap<K, u64>, counts: BTreeMap<K, u64>) {
    for (key, count) in counts {
        *sums.entry(key).or_default() += count;
    }
}

impl Totals {
    fn add(&mut self, report: Report) {
        self.seeds += 1;
        self.counts.iter_mut().zip(report.counts).for_each(|(sum, count)| *sum += count);
        self.simulated_time += report.simulated_time;
        add(&mut self.injected, report.injected);
        add(&mut self.reached, report.reached);
        self.violations.extend(report.violation.map(|violation| (report.seed, violation)));
    }

    fn injected(&self, fault: Fault) -> u64 {
        self.injected.get(&fault).copied().unwrap_or_default()
    }

    /// The states that this many seeds should have reached, and have not.
    fn unreached(&self, with_log: bool) -> Vec<Sometimes> {
        let expected = Sometimes::value_variants().iter().filter(|_| self.seeds >= Sometimes::SEEDS);
        // The log in memory does not survive a fail-over.
        let expected = expected.filter(|state| !(with_log && **state == Sometimes::CommitLostAtFailOver));
        expected.filter(|state| !self.reached.contains_key(state)).copied().collect()
    }
}

pub(crate) fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let began = Instant::now();
    let (from, seeds) = arguments.seed.map_or((arguments.from, arguments.seeds), |seed| (seed, 1));
    let (next, totals) = (AtomicU64::new(0), Mutex::new(Totals::default()));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..arguments.threads)
            .map(|_| {
                scope.spawn(|| -> io::Result<()> {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        if index >= seeds {
                            return Ok(());
                        }
                        let Arguments { without, log: with_log, trace: with_history, .. } = arguments;
                        let options = Options { without, with_log, with_history, ..Options::default() };
                        let report = run(from + index, options)?;
                        for entry in &report.history {
                            println!("{entry}");
                        }
                        let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
                        totals.add(report);
                        if totals.seeds.is_multiple_of(1_000) {
                            let (seeds, violations) = (totals.seeds, totals.violations.len());
                            let seconds = began.elapsed().as_secs_f64();
                            eprintln!("{seeds} seeds, {violations} violations, {seconds:.0} s");
                        }
                    }
                })
            })
            .collect();
        // A panic of the simulation itself has printed its message already.
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|_| Err(io::Error::other("a simulation thread panicked")))
        })
    })?;
    let mut totals = totals.into_inner().unwrap_or_else(PoisonError::into_inner);
    totals.violations.sort();
    print(&totals, began, if arguments.log { " --log" } else { "" });
    let unreached = totals.unreached(arguments.log);
    if !unreached.is_empty() {
        println!("\nthe run proves nothing about states that no seed reached: {unreached:?}");
    }
    Ok(match (totals.violations.is_empty(), unreached.is_empty()) {
        (false, _) => ExitCode::FAILURE,
        (true, false) => ExitCode::from(2),
        (true, true) => ExitCode::SUCCESS,
    })
}

fn print(totals: &Totals, began: Instant, options: &str) {
    println!("{:<24}{:>12}", "seeds", totals.seeds);
    let names = ["steps", "events", "published", "duplicates", "set aside"];
    for (name, count) in names.into_iter().zip(totals.counts) {
        println!("{name:<24}{count:>12}");
    }
    println!("{:<24}{:>12.0}", "simulated hours", totals.simulated_time.as_secs_f64() / 3600.0);
    println!("states reached");
    for state in Sometimes::value_variants() {
        println!("  {:<26}{:>8}", format!("{state:?}"), totals.reached.get(state).unwrap_or(&0));
    }
    println!("injected faults");
    for fault in Fault::value_variants() {
        println!("  {:<22}{:>12}", format!("{fault:?}"), totals.injected(*fault));
    }
    let crashes = [Fault::WriterCrash, Fault::RelayCrash, Fault::ConsumerCrash];
    let crashes: u64 = crashes.into_iter().map(|fault| totals.injected(fault)).sum();
    println!("{:<24}{crashes:>12}", "crashes");
    let violations = totals.violations.iter();
    let (liveness, safety): (Vec<_>, Vec<_>) =
        violations.partition(|(_, violation)| violation.starts_with("I8") || violation.starts_with("I9"));
    println!("{:<24}{:>12}", "safety violations", safety.len());
    println!("{:<24}{:>12}", "liveness violations", liveness.len());
    println!("{:<24}{:>12.1}", "seconds", began.elapsed().as_secs_f64());
    for (seed, violation) in totals.violations.iter().take(MAX_PRINTED_VIOLATIONS) {
        println!("\nseed {seed}: {violation}");
        println!("    cargo run --bin simulation -- --seed {seed}{options} --trace");
    }
}
