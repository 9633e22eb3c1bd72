//! The order service with `POST /orders`, or with the relay, written as it is often written. Everything else is the
//! product's: the other routes, the tables, the consumer. So whatever a drill finds is about that one part. `VARIANT` names
//! it; `docs/variants.md` says what to watch.

use std::process::ExitCode;

use flawed_services::{FlawedParts, run_orders};

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    run_orders(FlawedParts::variant()).await
}
