//! The billing service, with one part replaced if `SABOTAGE` names a flaw.

use std::process::ExitCode;

use flawed_services::{FlawedParts, provider::FlawedProvider};

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let parts = FlawedParts::sabotaged();
    billing::run(parts, |provider| FlawedProvider::new(provider, parts.0)).await
}
