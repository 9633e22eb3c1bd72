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

/// Every benchmark as it would be typed, and the options of its smoke run, which only shows that it works.
pub(crate) const ALL: [(&str, &str); 9] = [
    ("write", "--connections 4 --rounds 1 --seconds 1"),
    ("relay", "--events 3000 --rounds 1"),
    ("consumer", "--events 3000 --rounds 1"),
    ("latency --rate 100 --rate 600", "--rate 50 --seconds 1 --warm-up 50"),
    ("saga", "--connections 4 --rounds 1 --seconds 1"),
    ("cost", "--rate 50 --connections 4 --seconds 1 --statements"),
    ("count", "--orders 20 --rest 10"),
    ("baselines", "--events 500 --rate 50 --seconds 3 --relay product --relay poll-one-by-one"),
    ("recovery", "--outage 5 --rate 20"),
];

/// Ends a benchmark that does not end although every wait in it has a deadline.
const DEADLINE: Duration = Duration::from_secs(1800);

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

    /// Returns every benchmark with its default options; latency at 100 and at 600 orders a second.
    pub(crate) fn all() -> Result<Vec<Self>, clap::Error> {
        ALL.into_iter().map(|(line, _)| Self::parse(line)).collect()
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

    /// Returns the same benchmark with the options of its smoke run.
    pub(crate) fn smoke(&self) -> Result<Self, clap::Error> {
        let is_it = |line: &&(&str, &str)| line.0.split(' ').next() == Some(self.name());
        let options = ALL.iter().find(is_it).map_or("", |(_, smoke)| smoke);
        Self::parse(&format!("{} {options}", self.name()))
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
    fn every_smoke_run_can_be_parsed_and_a_mistake_cannot() {
        for benchmark in Benchmark::all().unwrap() {
            assert_eq!(benchmark.smoke().unwrap().name(), benchmark.name());
        }
        assert!(Benchmark::parse("relay --rounds 0").is_err() && Benchmark::parse("rely").is_err());
    }
}
