//! Benchmarks that end by themselves. Each starts servers and services of its own on loopback, measures ours and a
//! bare limit in turns in the same session, and prints both with their ratio and with the durability in force.

mod bare_consumer;
mod bare_publisher;
mod bench_database;
mod claim;
mod claim_sql;
mod conditions;
mod consumer;
mod footprint;
mod history;
mod latency;
mod memory;
mod orders_sql;
mod other_work;
mod pgbench;
mod relay;
mod report;
mod retention;
mod retention_sql;
mod rig;
mod saga;
mod vacuum;
mod write;

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use crate::report::Report;

/// What it costs, measured beside what it could cost at least.
#[derive(Debug, Parser)]
#[command(name = "load-tests", version)]
struct Arguments {
    #[command(subcommand)]
    benchmark: Benchmark,
    /// One JSON document instead of tables.
    #[arg(long, global = true)]
    json: bool,
    /// A setting of a service other than its default, such as ORDERS_LOG=warn. May be given several times.
    #[arg(long = "set", global = true, value_name = "NAME=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
}

fn setting(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE was expected")?;
    Ok((name.to_owned(), value.to_owned()))
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// `POST /orders` against the same statement from pgbench; that statement with the outbox row against without.
    Write(write::Options),
    /// A backlog leaving through the relay, against a bare publisher with the same confirms.
    Relay(relay::Options),
    /// Waiting messages becoming effects, against taking them and doing nothing.
    Consumer(consumer::Options),
    /// From the commit to the broker, and to the effects, at a constant rate of orders.
    Latency(latency::Options),
    /// Orders that go all the way, as many as there can be.
    Saga(saga::Options),
    /// Time to start, and memory.
    Footprint(footprint::Options),
    /// A look into the outbox with ten thousand published events behind it, and with ten million.
    Claim(claim::Options),
    /// The relay while a long transaction elsewhere holds back vacuum.
    Vacuum(vacuum::Options),
    /// A million old events leaving: in windows, in one statement, with their partition.
    Retention(retention::Options),
    /// The first six, with their defaults; latency at 100 and at 600 orders a second.
    All,
}

/// Every wait inside has a deadline that says more; this one is for the wait that was forgotten.
const LONGEST: Duration = Duration::from_secs(1800);

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            // As the `demo` command has it: the environment failed, no promise was broken. A missed goal is a result.
            ExitCode::from(2)
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut reports = Vec::new();
    for benchmark in arguments.benchmark.each()? {
        let measured = tokio::time::timeout(LONGEST, benchmark.run(&arguments.settings));
        let report = measured.await.with_context(|| format!("not done after {LONGEST:?}"))??;
        if arguments.json {
            reports.push(report);
        } else {
            println!("{report}");
        }
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    }
    Ok(())
}

impl Benchmark {
    async fn run(&self, settings: &[(String, String)]) -> anyhow::Result<Report> {
        match self {
            Benchmark::Write(options) => write::run(options, settings).await,
            Benchmark::Relay(options) => relay::run(options, settings).await,
            Benchmark::Consumer(options) => consumer::run(options, settings).await,
            Benchmark::Latency(options) => latency::run(options, settings).await,
            Benchmark::Saga(options) => saga::run(options, settings).await,
            Benchmark::Footprint(options) => footprint::run(options, settings).await,
            Benchmark::Claim(options) => claim::run(options).await,
            Benchmark::Vacuum(options) => vacuum::run(options, settings).await,
            Benchmark::Retention(options) => retention::run(options).await,
            Benchmark::All => anyhow::bail!("`all` is not one benchmark"),
        }
    }

    fn each(self) -> Result<Vec<Self>, clap::Error> {
        let Benchmark::All = self else {
            return Ok(vec![self]);
        };
        let lines = ["write", "relay", "consumer", "latency --rate 100 --rate 600", "saga", "footprint"];
        // Read as command lines are, so that each default stands in one place.
        let read =
            |line: &str| Arguments::try_parse_from(std::iter::once("load-tests").chain(line.split(' ')));
        lines.into_iter().map(|line| Ok(read(line)?.benchmark)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_the_benchmarks_of_a_few_minutes_with_their_defaults() {
        assert_eq!(Benchmark::All.each().unwrap().len(), 6);
    }
}
