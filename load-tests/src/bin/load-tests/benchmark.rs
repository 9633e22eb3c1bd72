//! The benchmarks, as subcommands.

use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::{
    baselines, consumer, cost, count, latency, recovery, relay, report::Report, saga, setup::Setup, write,
};

/// One benchmark with its options.
#[derive(Debug, Subcommand)]
pub(crate) enum Benchmark {
    /// Compare `POST /orders` with its own statement in pgbench, and that statement with and without the outbox row.
    Write(write::Options),
    /// Compare the relay, as it publishes a backlog, with a bare publisher that awaits the same confirms.
    Relay(relay::Options),
    /// Compare the consumers, as they apply waiting messages, with a bare consumer that only acknowledges them.
    Consumer(consumer::Options),
    /// Measure the time from an order's commit to its publication and to its effects, at a constant rate of orders.
    Latency(latency::Options),
    /// Measure how many orders a second the whole system accepts and confirms.
    Saga(saga::Options),
    /// Measure the processor time of an order, by process and by statement, at several rates.
    Cost(cost::Options),
    /// Count what an order costs in a calm system, and what the system sends at rest: messages, transactions, publishes.
    Count(count::Options),
    /// Compare the relay with others that are often written: their rate, latency, cost, and what a fault does to them.
    Baselines(baselines::Options),
    /// Drain the backlog of an outage while orders keep coming, and sample it each second.
    Recovery(recovery::Options),
}

/// Every benchmark once, as it would be typed.
pub(crate) const ALL: [&str; 9] = [
    "write",
    "relay",
    "consumer",
    "latency --rate 100 --rate 600",
    "saga",
    "cost",
    "count",
    "baselines",
    "recovery",
];

/// Ends a benchmark that waits for ever although every wait in it has a deadline of its own.
const DEADLINE: Duration = Duration::from_secs(1800);

/// A benchmark as it is typed, without the options that all benchmarks share.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(subcommand)]
    benchmark: Benchmark,
}

impl Benchmark {
    /// Reads a benchmark with its options, such as `relay --rounds 1`.
    pub(crate) fn parse(line: &str) -> Result<Self, clap::Error> {
        Ok(Line::try_parse_from(line.split_whitespace())?.benchmark)
    }

    /// Returns every benchmark with its default options; latency at 100 and at 600 orders a second.
    pub(crate) fn all() -> Result<Vec<Self>, clap::Error> {
        ALL.into_iter().map(Self::parse).collect()
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Write(_) => "write",
            Self::Relay(_) => "relay",
            Self::Consumer(_) => "consumer",
            Self::Latency(_) => "latency",
            Self::Saga(_) => "saga",
            Self::Cost(_) => "cost",
            Self::Count(_) => "count",
            Self::Baselines(_) => "baselines",
            Self::Recovery(_) => "recovery",
        }
    }

    /// Whether it starts variants of a service too.
    pub(crate) fn needs_variants(&self) -> bool {
        matches!(self, Self::Baselines(_))
    }

    /// Lowers the counts and times to what only shows that the benchmark works. Smaller ones stay as they are.
    pub(crate) fn smoke(self) -> Self {
        match self {
            Self::Write(options) => Self::Write(options.smoke()),
            Self::Relay(options) => Self::Relay(options.smoke()),
            Self::Consumer(options) => Self::Consumer(options.smoke()),
            Self::Latency(options) => Self::Latency(options.smoke()),
            Self::Saga(options) => Self::Saga(options.smoke()),
            Self::Cost(options) => Self::Cost(options.smoke()),
            Self::Count(options) => Self::Count(options.smoke()),
            Self::Baselines(options) => Self::Baselines(options.smoke()),
            Self::Recovery(options) => Self::Recovery(options.smoke()),
        }
    }

    /// The longest that a run may take: half an hour, and what its options ask for.
    pub(crate) fn deadline(&self) -> Duration {
        match self {
            Self::Recovery(options) => DEADLINE + options.longest_duration(),
            _ => DEADLINE,
        }
    }

    pub(crate) async fn run(&self, setup: &Setup) -> anyhow::Result<Report> {
        match self {
            Self::Write(options) => write::run(options, setup).await,
            Self::Relay(options) => relay::run(options, setup).await,
            Self::Consumer(options) => consumer::run(options, setup).await,
            Self::Latency(options) => latency::run(options, setup).await,
            Self::Saga(options) => saga::run(options, setup).await,
            Self::Cost(options) => cost::run(options, setup).await,
            Self::Count(options) => count::run(options, setup).await,
            Self::Baselines(options) => baselines::run(options, setup).await,
            Self::Recovery(options) => recovery::run(options, setup).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn all_runs_each_benchmark_once() {
        let names: Vec<&str> = Benchmark::all().unwrap().iter().map(Benchmark::name).collect();
        let command = Line::command();
        let subcommands: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        assert_eq!(names, subcommands);
    }

    #[test]
    fn a_long_run_has_the_time_that_its_options_ask_for() {
        let deadline = |line| Benchmark::parse(line).unwrap().deadline();
        assert!(deadline("recovery --outage 1800 --outage 60") > Duration::from_secs(10 * 1_860));
        assert_eq!(deadline("relay"), DEADLINE);
    }

    #[test]
    fn a_smoke_run_is_small_and_does_not_enlarge_what_is_smaller() {
        let Benchmark::Relay(options) = Benchmark::parse("relay --events 700").unwrap().smoke() else {
            panic!("it is the relay's benchmark");
        };
        assert_eq!((options.events, options.rounds), (700, 1));
        assert!(Benchmark::parse("relay --rounds 0").is_err() && Benchmark::parse("rely").is_err());
    }
}
