//! The `demo` command: run it, break it, and count.
//!
//! It meets the system as a stranger would: over HTTP, by reading the database as the auditor, and by killing
//! processes or containers. It shares no code with the services, so a fault there cannot hide itself here.

pub mod audit;
mod choice;
mod cli;
mod commands;
mod compose;
mod control;
mod drills;
mod http;
mod interrupt;
pub mod lab;
pub mod ledger;
mod local_shop;
mod paths;
pub mod seeds;
mod shop;
mod state;
mod target;
mod terminal;
mod variant;
mod verdict;

pub use choice::With;
pub use cli::Cli;
pub use variant::Variant;
pub use verdict::Verdict;
