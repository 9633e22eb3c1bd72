//! The `demo` command: runs the system, breaks it and reconciles the records.

use std::process::ExitCode;

use clap::Parser as _;
use demo::{Cli, Verdict};

#[tokio::main]
async fn main() -> ExitCode {
    match Cli::parse().run().await {
        Ok(verdict) => verdict.into(),
        Err(error) => {
            // One line with the whole chain of causes. The environment failed, so nothing is proven.
            eprintln!("demo: {error:#}");
            Verdict::Inconclusive.into()
        }
    }
}
