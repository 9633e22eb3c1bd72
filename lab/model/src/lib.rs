//! A small formal model of relay, broker and inbox, explored to the end.
//!
//! The simulation runs the real code and reaches some of the orders in which things can happen. The model has only the code
//! that decides about confirms, and reaches all of them, for two relays, three events and a few faults. `docs/model.md` says
//! what is modelled and what is not. In reading order: `state`, the rules of `relays` and `consumers`, `system`, `graph`, and
//! `check`.

mod action;
mod answers;
mod check;
mod consumers;
mod events;
mod graph;
mod invariant;
mod relays;
mod state;
mod system;

pub use action::{Action, Sent};
pub use answers::Outcome;
pub use check::{accept, refute};
pub use events::{EVENTS, Event, Events};
pub use graph::{Exploration, Violation, explore};
pub use invariant::Invariant;
pub use system::{Explored, System};
