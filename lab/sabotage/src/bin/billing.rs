//! The billing service with the lab's parts.

use std::process::ExitCode;

use sabotage::{LabParts, provider::LabProvider};

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let parts = LabParts::from_env();
    let sabotage = parts.sabotage();
    billing::run(parts, |provider| LabProvider::new(provider, sabotage)).await
}
