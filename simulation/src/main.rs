//! `cargo run --release -p simulation -- --seeds 10000`: many small worlds, each with its own disasters.

use std::{
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use clap::Parser;
use simulation::{Fault, Report, run};

/// Runs the real relay and the real consumer logic in worlds that exist only in memory, one for each seed.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 10_000, conflicts_with = "seed")]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0, conflicts_with = "seed")]
    from: u64,
    /// Only this one.
    #[arg(long)]
    seed: Option<u64>,
    /// Prints the history of the seed.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// How many worlds at a time, each on a thread of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
}

/// What all seeds came to.
#[derive(Default)]
struct Sum {
    seeds: u64,
    steps: u64,
    events: usize,
    published: usize,
    duplicates: usize,
    set_aside: usize,
    hours: f64,
    struck: Vec<u64>,
    broken: Vec<Report>,
}

impl Sum {
    fn add(&mut self, report: Report) {
        self.seeds += 1;
        self.steps += report.steps;
        self.events += report.events;
        self.published += report.published;
        self.duplicates += report.duplicates;
        self.set_aside += report.set_aside;
        self.hours += report.virtual_time.as_secs_f64() / 3600.0;
        self.struck.resize(Fault::COUNT, 0);
        for (sum, more) in self.struck.iter_mut().zip(report.struck) {
            *sum += more;
        }
        if report.violation.is_some() {
            self.broken.push(report);
        }
    }
}

pub(crate) fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let began = Instant::now();
    let (from, seeds) = arguments.seed.map_or((arguments.from, arguments.seeds), |seed| (seed, 1));
    let (next, sum) = (AtomicU64::new(0), Mutex::new(Sum::default()));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..arguments.threads)
            .map(|_| {
                scope.spawn(|| -> std::io::Result<()> {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        if index >= seeds {
                            return Ok(());
                        }
                        let report = run(from + index, None, arguments.trace)?;
                        for line in &report.history {
                            println!("{line}");
                        }
                        let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
                        sum.add(report);
                        if sum.seeds.is_multiple_of(1_000) {
                            let (done, broken) = (sum.seeds, sum.broken.len());
                            eprintln!(
                                "{done} seeds, {broken} broken, {:.0} s",
                                began.elapsed().as_secs_f64()
                            );
                        }
                    }
                })
            })
            .collect();
        // A panic in a world is a bug in the simulation, and has said so itself.
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|_| Err(std::io::Error::other("a panic"))))
    })?;
    let mut sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    sum.broken.sort_by_key(|report| report.seed);
    print(&sum, began);
    Ok(if sum.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(sum: &Sum, began: Instant) {
    let broken = |safety: bool| {
        let is_meant =
            |report: &&Report| report.violation.as_ref().is_some_and(|broken| broken.safety == safety);
        sum.broken.iter().filter(is_meant).count()
    };
    let struck = |fault: Fault| sum.struck.get(fault as usize).copied().unwrap_or_default();
    println!("{:<22}{:>12}", "seeds", sum.seeds);
    println!("{:<22}{:>12}", "steps", sum.steps);
    println!("{:<22}{:>12.0}", "simulated hours", sum.hours);
    println!("{:<22}{:>12}", "events", sum.events);
    println!("{:<22}{:>12}", "published", sum.published);
    println!("{:<22}{:>12}", "duplicates", sum.duplicates);
    println!("{:<22}{:>12}", "set aside", sum.set_aside);
    for (fault, _) in Fault::ALL {
        println!("  {:<20}{:>12}", format!("{fault:?}"), struck(fault));
    }
    let crashes = struck(Fault::WriterCrash) + struck(Fault::RelayCrash) + struck(Fault::ConsumerCrash);
    println!("{:<22}{crashes:>12}", "crashes");
    println!("{:<22}{:>12}", "safety violations", broken(true));
    println!("{:<22}{:>12}", "liveness violations", broken(false));
    println!("{:<22}{:>12.1}", "seconds", began.elapsed().as_secs_f64());
    for report in sum.broken.iter().take(20) {
        let what = report.violation.as_ref().map_or("", |violation| violation.what.as_str());
        println!("\nseed {}: {what}", report.seed);
        println!("    cargo run --release -p simulation -- --seed {} --trace", report.seed);
    }
}
