//! The order service, with one part replaced if `SABOTAGE` names a flaw.

use std::process::ExitCode;

use flawed_services::{FlawedParts, run_orders};

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    run_orders(FlawedParts::sabotaged()).await
}
