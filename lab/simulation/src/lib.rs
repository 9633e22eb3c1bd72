//! Deterministic simulation: the real relay and the real consumer logic in a world that exists only in memory.
//!
//! One seed determines the order of all steps, which operation fails, which process crashes where, and how long
//! everything takes; the clock jumps from one event to the next. A thousand crashes take a second, and a seed that
//! violates an invariant violates it again every time it runs. `docs/simulation.md` says what is real here and what is
//! not.
//!
//! - [`run()`]: simulates one seed, from the first event until nothing is pending. [`Options`]: what it leaves out.
//! - [`Fault`]: what can go wrong.
//! - [`Sometimes`]: a rare state that a run of many seeds has to reach.
//! - [`flaws::Flaw`]: a protection that is left out, to show that the judge notices.

// The state.
mod fault;
mod history;
mod judge;
mod log;
mod outbox_table;
mod queue;
mod random_source;
mod sometimes;
mod standby;
mod state;

// Functions over the state.
mod broker_actions;
mod confirms;
mod fail_over;

// What the processes do: the real code, over adapters in memory.
mod consumer;
mod handler;
mod log_reader;
mod log_store;
mod partitions;
mod process;
mod publisher;
mod store;
mod writer;

// The run of one seed.
mod environment;
mod run;

pub use fault::Fault;
pub use history::{Actor, Entry};
pub use run::{Report, run};
pub use sometimes::Sometimes;
pub use state::Options;
