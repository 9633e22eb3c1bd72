//! The `demo` command: runs the system, breaks it and reconciles the records.
//!
//! It uses the system as any client does: over HTTP, by reading the database as the auditor, and by killing processes
//! or containers. It shares no code with the services, so a fault there cannot hide itself here.

mod alteration;
mod board;
mod cancelling_load;
mod choice;
mod cli;
mod commands;
mod compose;
mod control;
mod databases;
mod drills;
pub mod experiments;
pub mod fault;
mod http;
mod interrupt;
pub mod lab;
pub mod ledger;
mod load;
mod local_system;
mod metrics;
mod network_system;
mod operator_client;
mod own_system;
mod part;
mod paths;
mod proofs;
mod proxies;
pub mod reconciliation;
mod running_system;
pub mod seeds;
mod set_aside;
mod soak;
mod state;
mod story;
mod terminal;
mod watch;
mod without;

pub use cli::Cli;
pub use judge::Verdict;
pub use load::RunningLoad;
pub use proofs::WITHOUT;
pub use running_system::RunningSystem;
pub use without::Protection;
