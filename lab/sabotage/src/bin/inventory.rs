//! The inventory service with the lab's parts.

use std::process::ExitCode;

use sabotage::LabParts;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let parts = LabParts::from_env();
    inventory::run(parts).await
}
