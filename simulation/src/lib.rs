//! Deterministic simulation: the real relay and the real consumer logic in a world that exists only in memory.
//!
//! One seed decides who goes first at every step, which operation fails, who dies where, and how long everything takes;
//! the clock jumps from one event to the next. A thousand crashes take a second, and a seed that breaks a promise
//! breaks it again whenever it is run. `docs/simulation.md` says what is real here, and what is not.
//!
//! - [`run()`]: one seed, from the first event to rest.
//! - [`Fault`]: what can go wrong.
//! - [`Violation`]: what must not, and did.
//! - [`Mutant`]: protections taken away, to see that the judge notices.

mod confirms;
mod consumer;
mod dice;
mod fault;
mod history;
mod inbox;
mod judge;
mod line;
mod lives;
mod mutant;
mod outbox_rows;
mod publisher;
mod queues;
mod rest;
mod run;
mod store;
mod weather;
mod world;
mod writer;

pub use fault::Fault;
pub use judge::Violation;
pub use mutant::Mutant;
pub use run::{Report, run};
