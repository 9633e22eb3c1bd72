//! The `demo` command: run it, break it, and count.

use std::process::ExitCode;

use clap::Parser as _;
use demo::{Cli, Verdict};

#[tokio::main]
async fn main() -> ExitCode {
    match Cli::parse().run().await {
        Ok(verdict) => verdict.into(),
        Err(error) => {
            // One line for people, with the whole chain of causes. The environment failed: nothing is proven.
            eprintln!("demo: {error:#}");
            Verdict::Inconclusive.into()
        }
    }
}
