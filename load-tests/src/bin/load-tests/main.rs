//! Benchmarks that end by themselves. Each starts private servers and services on loopback, measures the product and a
//! bare limit alternately, and prints both with their ratio and with the durability settings in force.

mod backlog;
mod bare_publisher;
mod benchmark;
mod compare;
mod comparison;
mod consumer;
mod count;
mod counting_forwarder;
mod machine;
mod orders;
mod relay;
mod relays;
mod report;
mod rig;
mod table;
mod write;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::{benchmark::Benchmark, rig::Setup};

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
    /// Compare two builds: run benchmarks of both alternately, and print the medians and their ratios.
    Compare(compare::Options),
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            // As in the `demo` command: the environment failed, and no promise was broken.
            ExitCode::from(2)
        }
    }
}

async fn run(arguments: Arguments) -> Result<()> {
    // The services are built with the profile of this program.
    anyhow::ensure!(
        arguments.smoke || !cfg!(debug_assertions),
        "built without optimisation, this program can only run with --smoke: cargo build --release --workspace --bin load-tests"
    );
    let setup = Setup { settings: arguments.settings, smoke: arguments.smoke };
    let benchmark = match arguments.command {
        Command::Compare(options) => return compare::run(&options, &setup).await,
        Command::One(benchmark) => benchmark,
    };
    // Before any clock runs: a first build takes minutes.
    testbed::build_services(true).await?;
    let report = benchmark.run(&setup).await?;
    match arguments.json {
        // A list, as builds print it that measure several at once.
        true => println!("{}", serde_json::to_string_pretty(&[report])?),
        false => println!("{report}"),
    }
    Ok(())
}
