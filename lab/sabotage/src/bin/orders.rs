//! The order service with the lab's parts.

use std::process::ExitCode;

use sabotage::LabParts;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let parts = LabParts::from_env();
    let sabotage = parts.sabotage();
    orders::run(parts, |routes, _, _| Ok(sabotage::api(sabotage, routes))).await
}
