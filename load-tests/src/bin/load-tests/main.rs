//! Benchmarks that end by themselves. Each starts private servers and services on loopback, measures the product and a
//! bare limit alternately, and prints both with their ratio and with the durability settings in force.

mod bare_consumer;
mod bare_publisher;
mod baselines;
mod benchmark;
mod compare;
mod comparison;
mod conditions;
mod consumer;
mod cost;
mod count;
mod counting_forwarder;
mod cpu_time;
mod latency;
mod orders_sql;
mod pgbench;
mod plots;
mod recovery;
mod relay;
mod report;
mod rig;
mod rig_database;
mod saga;
mod setup;
mod table;
mod tap;
mod write;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};

use crate::{benchmark::Benchmark, report::Report, setup::Setup};

/// Measures the product beside the bare limits of the same machine.
#[derive(Debug, Parser)]
#[command(name = "load-tests", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Print JSON instead of tables.
    #[arg(long, global = true)]
    json: bool,
    /// Run everything once with tiny counts, to see that it works. The figures mean nothing.
    #[arg(long, global = true)]
    smoke: bool,
    /// Give the services a setting other than its default, for example ORDERS_LOG=warn. May be repeated.
    #[arg(long = "set", global = true, value_name = "NAME=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
}

fn setting(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE was expected")?;
    Ok((name.to_owned(), value.to_owned()))
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    One(Benchmark),
    /// Run all benchmarks with their defaults; latency at 100 and at 600 orders a second.
    All,
    /// Draw what was measured.
    Report {
        /// The file that `load-tests all --json`, or one benchmark with `--json`, has printed.
        from: PathBuf,
        /// The directory of the pictures.
        #[arg(long, default_value = "docs/plots")]
        to: PathBuf,
    },
    /// Compare two builds: run benchmarks of both alternately, and print the medians and their ratios.
    Compare(compare::Options),
}

/// Ends a smoke run that does not end although every wait in it has a deadline.
const SMOKE_DEADLINE: Duration = Duration::from_secs(180);

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            // As in the `demo` command: the environment failed, and no promise was broken. A missed goal is a result.
            ExitCode::from(2)
        }
    }
}

async fn run(arguments: Arguments) -> Result<()> {
    let measures = !arguments.smoke && !matches!(arguments.command, Command::Report { .. });
    // The services are built with the profile of this program.
    anyhow::ensure!(
        !measures || !cfg!(debug_assertions),
        "built without optimisation, this program can only run with --smoke: cargo build --release --workspace --bin load-tests"
    );
    let setup = Setup { settings: arguments.settings, smoke: arguments.smoke };
    match arguments.command {
        Command::One(benchmark) => run_all(vec![benchmark], &setup, arguments.json).await,
        Command::All => run_all(Benchmark::all()?, &setup, arguments.json).await,
        Command::Report { from, to } => draw(&from, &to),
        Command::Compare(options) => compare::run(&options, &setup, arguments.json).await,
    }
}

/// Draws the figures of a file.
fn draw(from: &Path, to: &Path) -> Result<()> {
    let text = std::fs::read_to_string(from).with_context(|| format!("failed to read {}", from.display()))?;
    let measured: Vec<plots::Measured> = serde_json::from_str(&text).context("failed to read the figures")?;
    for picture in plots::draw(&measured, to)? {
        println!("{}", picture.display());
    }
    Ok(())
}

/// Runs the benchmarks one after the other. One that fails does not keep the others from running. Each report is printed when
/// it is there, unless they are wanted as JSON in the end.
async fn run_all(benchmarks: Vec<Benchmark>, setup: &Setup, json: bool) -> Result<()> {
    // Before any clock runs: a first build takes minutes.
    testbed::build_services(true).await?;
    if benchmarks.iter().any(Benchmark::needs_variants) {
        testbed::build_lab(true).await?;
    }
    let (mut reports, mut times, mut failed) = (vec![], vec![], vec![]);
    for benchmark in benchmarks {
        let (name, start) = (benchmark.name(), Instant::now());
        let result = measure(benchmark, setup).await;
        times.push(format!("{name} {:.1} s", start.elapsed().as_secs_f64()));
        match result {
            Ok(report) => {
                if !json {
                    println!("{report}");
                }
                reports.push(report);
            }
            Err(error) => {
                eprintln!("{name} failed: {error:#}");
                failed.push(name);
            }
        }
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    }
    eprintln!("{}", times.join(", "));
    anyhow::ensure!(failed.is_empty(), "{} of {} failed: {}", failed.len(), times.len(), failed.join(", "));
    Ok(())
}

async fn measure(benchmark: Benchmark, setup: &Setup) -> Result<Report> {
    let deadline = if setup.smoke { SMOKE_DEADLINE } else { benchmark.deadline() };
    let benchmark = if setup.smoke { benchmark.smoke()? } else { benchmark };
    let measured = tokio::time::timeout(deadline, benchmark.run(setup)).await;
    measured.with_context(|| format!("failed to end within {deadline:?}"))?
}
