//! Where the demo keeps what outlives one command.

use std::path::PathBuf;

/// `target/demo` of the checkout; outside one (in a container), a directory for temporary files.
pub(crate) fn home() -> PathBuf {
    match testbed::workspace_root() {
        Some(root) => root.join("target/demo"),
        None => std::env::temp_dir().join("outbox-demo"),
    }
}

/// How to reach the system that `demo up` runs in another terminal.
pub(crate) fn state() -> PathBuf {
    home().join("state.json")
}

/// The services' logs, in local mode.
pub(crate) fn logs() -> PathBuf {
    home().join("logs")
}

/// The acknowledgements for the orders in one database. Its identity is part of the name: an empty database that
/// takes the place of another one did not lose the other one's orders.
pub(crate) fn ledger(database: &str) -> PathBuf {
    home().join(format!("ledger-{database}.jsonl"))
}
