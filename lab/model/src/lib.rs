//! A small formal model of relay, broker and inbox, explored to the end.
//!
//! The simulation runs the real code and reaches some of the orders in which things can happen. The model has none of
//! the code, and reaches all of them, for two relays, three events and a few faults. `docs/model.md` says what is
//! modelled and what is not.
//!
//! - [`System`]: the transitions, as a [`stateright::Model`].
//! - [`explore`]: checks safety with stateright, and quiescence on the [`Graph`] of all states.
//! - [`refute`]: finds the simplest trace in which a [`Mutant`] violates an [`Invariant`].
//! - [`accept`]: follows the model along a recorded history.

// Modules import only modules above them.
mod events;
mod invariant;
mod mutant;

// What there is, and what can happen to it.
pub mod answers;
mod state;

mod action;

mod system;

mod consuming;
mod publishing;

// What is asked about it.
mod graph;
mod history;

mod check;

pub use action::{Action, Sent};
pub use answers::Outcome;
pub use check::{Exploration, Explored, Refutation, Violation, explore, refute};
pub use events::{EVENTS, Event, Events};
pub use graph::Graph;
pub use history::{Entry, Rejection, accept};
pub use invariant::Invariant;
pub use mutant::Mutant;
pub use state::State;
pub use system::{SAFETY, System};
