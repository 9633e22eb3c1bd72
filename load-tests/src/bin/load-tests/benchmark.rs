//! The benchmarks, as subcommands.

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};

use crate::{consumer, count, orders, relay, report::Report, rig::Setup, write};

/// One benchmark with its options.
#[derive(Debug, Subcommand)]
pub(crate) enum Benchmark {
    /// Compare `POST /orders` with pgbench, which writes the same rows.
    Write(write::Options),
    /// Compare the relay, as it publishes a backlog, with a bare publisher that awaits the same confirms.
    Relay(relay::Options),
    /// Measure how many waiting messages a second each consumer applies.
    Consumer(consumer::Options),
    /// Place orders at several rates and at saturation: how long each takes, how many a second, what each costs.
    Orders(orders::Options),
    /// Count what an order costs in a calm system, and what the system sends at rest: messages, transactions, publishes.
    Count(count::Options),
}

/// The options of each benchmark's smoke run, which only shows that it works.
const SMOKE: [(&str, &str); 5] = [
    ("write", "--connections 4 --rounds 1 --seconds 1"),
    ("relay", "--events 3000 --rounds 1"),
    ("consumer", "--events 3000 --rounds 1"),
    ("orders", "--rate 50 --connections 4 --rounds 1 --seconds 1 --statements --outage 3"),
    ("count", "--orders 20 --rest 10"),
];

/// A run ends then at the latest, although every wait in it has a deadline.
pub(crate) const DEADLINE: Duration = Duration::from_secs(3600);
const SMOKE_DEADLINE: Duration = Duration::from_secs(600);

/// A benchmark as it is typed, without the options that all benchmarks share.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(subcommand)]
    benchmark: Benchmark,
}

impl Benchmark {
    /// Reads a benchmark with its options, for example `relay --rounds 1`.
    pub(crate) fn parse(line: &str) -> Result<Self, clap::Error> {
        Ok(Line::try_parse_from(line.split_whitespace())?.benchmark)
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Write(_) => "write",
            Self::Relay(_) => "relay",
            Self::Consumer(_) => "consumer",
            Self::Orders(_) => "orders",
            Self::Count(_) => "count",
        }
    }

    /// Runs the benchmark. A smoke run has tiny counts in place of the options.
    pub(crate) async fn run(self, setup: &Setup) -> Result<Report> {
        let (deadline, benchmark) = match setup.smoke {
            true => (SMOKE_DEADLINE, self.smoke()?),
            false => (DEADLINE, self),
        };
        let measured = tokio::time::timeout(deadline, benchmark.measure(setup)).await;
        measured.with_context(|| format!("failed to end within {deadline:?}"))?
    }

    fn smoke(&self) -> Result<Self, clap::Error> {
        let options = SMOKE.iter().find(|(name, _)| *name == self.name()).map_or("", |(_, options)| options);
        let mut smoke = Self::parse(&format!("{} {options}", self.name()))?;
        // What decides which code runs stays.
        match (self, &mut smoke) {
            (Self::Count(options), Self::Count(smoke)) => {
                smoke.instances = options.instances;
                smoke.standby = options.standby;
            }
            (Self::Consumer(options), Self::Consumer(smoke)) => smoke.partitions = options.partitions,
            (Self::Orders(options), Self::Orders(smoke)) => smoke.relays = options.relays,
            _ => {}
        }
        Ok(smoke)
    }

    async fn measure(&self, setup: &Setup) -> Result<Report> {
        match self {
            Self::Write(options) => write::run(options, setup).await,
            Self::Relay(options) => relay::run(options, setup).await,
            Self::Consumer(options) => consumer::run(options, setup).await,
            Self::Orders(options) => orders::run(options, setup).await,
            Self::Count(options) => count::run(options, setup).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn each_benchmark_has_a_smoke_run_and_a_mistake_is_found() {
        let command = Line::command();
        let subcommands: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        assert_eq!(SMOKE.map(|(name, _)| name), *subcommands);
        for name in subcommands {
            assert_eq!(Benchmark::parse(name).unwrap().smoke().unwrap().name(), name);
        }
        assert!(Benchmark::parse("relay --rounds 0").is_err() && Benchmark::parse("rely").is_err());
    }
}
