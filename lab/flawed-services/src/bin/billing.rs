//! The billing service, with one part replaced if `SABOTAGE` names a flaw.

use std::process::ExitCode;

use flawed_services::FlawedParts;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    billing::run(FlawedParts::sabotaged()).await
}
