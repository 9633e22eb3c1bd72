//! `cargo run --bin simulation -- --seeds 10000`: simulates many seeds and reports violated invariants.

use std::{
    io,
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use clap::Parser;
use simulation::{Fault, Report, Sometimes, ViolationKind, run_with_log, run_without};

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
    #[arg(long, value_parser = fault)]
    without: Option<Fault>,
    /// The relays read the write-ahead log.
    #[arg(long, conflicts_with = "without")]
    log: bool,
    /// The number of threads. Each runs one seed at a time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
}

/// For `value_parser`: a fault by its name.
fn fault(name: &str) -> Result<Fault, &'static str> {
    let found = Fault::ALL.into_iter().find(|(fault, _)| format!("{fault:?}") == name);
    found.map(|(fault, _)| fault).ok_or("there is no such fault: a run prints their names")
}

/// The sums over all seeds.
#[derive(Default)]
struct Totals {
    seeds: u64,
    /// Steps, events, published, duplicates, set aside.
    counts: [u64; 5],
    simulated_hours: f64,
    injected: Vec<u64>,
    reached: [u64; Sometimes::ALL.len()],
    violations: Vec<Report>,
}

fn add(sums: &mut [u64], counts: &[u64]) {
    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
}

impl Totals {
    fn add(&mut self, report: Report) {
        let Report { events, published, duplicates, set_aside, .. } = report;
        let counts = [events, published, duplicates, set_aside].map(|count| count as u64);
        self.seeds += 1;
        self.counts[0] += report.steps;
        add(&mut self.counts[1..], &counts);
        self.simulated_hours += report.simulated_time.as_secs_f64() / 3600.0;
        self.injected.resize(Fault::COUNT, 0);
        add(&mut self.injected, &report.injected);
        add(&mut self.reached, &report.reached);
        if report.violation.is_some() {
            self.violations.push(report);
        }
    }

    fn injected(&self, fault: Fault) -> u64 {
        self.injected.get(fault as usize).copied().unwrap_or_default()
    }

    /// The states that this many seeds should have reached, and have not.
    fn unreached(&self) -> Vec<Sometimes> {
        let expected = Sometimes::ALL.into_iter().filter(|_| self.seeds >= Sometimes::SEEDS);
        expected.filter(|state| self.reached[*state as usize] == 0).collect()
    }

    fn violations(&self, kind: ViolationKind) -> usize {
        let kinds = self.violations.iter().flat_map(|report| &report.violation);
        kinds.filter(|violation| violation.kind == kind).count()
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
                        let (seed, trace) = (from + index, arguments.trace);
                        let report = match arguments.log {
                            true => run_with_log(seed, None, trace)?,
                            false => run_without(arguments.without, seed, None, trace)?,
                        };
                        for line in &report.history {
                            println!("{line}");
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
    totals.violations.sort_by_key(|report| report.seed);
    print(&totals, began, if arguments.log { " --log" } else { "" });
    let unreached = totals.unreached();
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
    let [steps, rest @ ..] = totals.counts;
    println!("{:<24}{steps:>12}", "steps");
    println!("{:<24}{:>12.0}", "simulated hours", totals.simulated_hours);
    for (name, count) in ["events", "published", "duplicates", "set aside"].into_iter().zip(rest) {
        println!("{name:<24}{count:>12}");
    }
    println!("states reached");
    for state in Sometimes::ALL {
        println!("  {:<26}{:>8}", format!("{state:?}"), totals.reached[state as usize]);
    }
    println!("injected faults");
    for (fault, _) in Fault::ALL {
        println!("  {:<22}{:>12}", format!("{fault:?}"), totals.injected(fault));
    }
    let crashes =
        [Fault::WriterCrash, Fault::RelayCrash, Fault::ConsumerCrash].map(|fault| totals.injected(fault));
    let crashes: u64 = crashes.iter().sum();
    println!("{:<24}{crashes:>12}", "crashes");
    println!("{:<24}{:>12}", "safety violations", totals.violations(ViolationKind::Safety));
    println!("{:<24}{:>12}", "liveness violations", totals.violations(ViolationKind::Liveness));
    println!("{:<24}{:>12.1}", "seconds", began.elapsed().as_secs_f64());
    for report in totals.violations.iter().take(MAX_PRINTED_VIOLATIONS) {
        let message = report.violation.as_ref().map_or("", |violation| violation.message.as_str());
        println!("\nseed {}: {message}", report.seed);
        println!("    cargo run --bin simulation -- --seed {}{options} --trace", report.seed);
    }
}
