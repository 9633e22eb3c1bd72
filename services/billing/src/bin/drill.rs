//! The billing service with crash points and sabotages compiled in: for drills and tests, never for use.

#[path = "../main.rs"]
mod service;

fn main() -> anyhow::Result<std::process::ExitCode> {
    service::main()
}
