//! The files that outlive one command.

use std::path::PathBuf;

/// `DEMO_HOME`, or `target/demo` of the checkout, or `~/.local/state/outbox-demo`: never a directory that another user may have
/// made, because addresses and tokens are read from it.
pub(crate) fn home() -> PathBuf {
    if let Some(home) = std::env::var_os("DEMO_HOME") {
        return home.into();
    }
    match testbed::workspace_root() {
        Some(root) => root.join("target/demo"),
        None => std::env::home_dir().unwrap_or_default().join(".local/state/outbox-demo"),
    }
}

/// The addresses of the system that `demo up` runs in another terminal.
pub(crate) fn state() -> PathBuf {
    home().join("state.json")
}

/// The passwords of the auditor and of the administrator, for `psql`.
pub(crate) fn pgpass() -> PathBuf {
    home().join("pgpass")
}

/// The services' logs when they run without Docker.
pub(crate) fn logs() -> PathBuf {
    home().join("logs")
}

/// The acknowledgements of the orders in one database. The database's identity is part of the name: an empty database
/// that replaces another one has not lost that one's orders.
pub(crate) fn ledger(database: &str) -> PathBuf {
    home().join(format!("ledger-{database}.jsonl"))
}

/// The variable with the directory of the previous release's programs, for the drill `release-rolled`.
pub(crate) const PREVIOUS_RELEASE: &str = "DEMO_PREVIOUS_RELEASE";

/// The directory of the previous release's programs, if it is given.
pub(crate) fn previous_release() -> Option<PathBuf> {
    let directory = std::env::var_os(PREVIOUS_RELEASE)?;
    std::path::absolute(directory).ok()
}
