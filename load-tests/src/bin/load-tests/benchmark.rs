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

/// A run ends then at the latest, although every wait in it has a deadline. Later on a slow machine.
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

    /// Runs the benchmark. A smoke run has tiny counts in place of the options, except those that decide which code runs.
    pub(crate) async fn run(self, setup: &Setup) -> Result<Report> {
        let deadline = testbed::longer(if setup.smoke { SMOKE_DEADLINE } else { DEADLINE });
        let measured = tokio::time::timeout(deadline, async {
            match self {
                Self::Write(options) => write::run(options, setup).await,
                Self::Relay(options) => relay::run(options, setup).await,
                Self::Consumer(options) => consumer::run(options, setup).await,
                Self::Orders(options) => orders::run(options, setup).await,
                Self::Count(options) => count::run(options, setup).await,
            }
        });
        measured.await.with_context(|| format!("failed to end within {deadline:?}"))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_in_a_benchmark_is_found_when_it_is_read() {
        assert!(Benchmark::parse("relay --rounds 1").is_ok());
        assert!(Benchmark::parse("relay --rounds 0").is_err() && Benchmark::parse("rely").is_err());
    }
}
