//! Where systems are set up to be broken in ways that a running one could not be asked for.
//!
//! [`Stage`] is a system of one's own, on a database and a virtual host of its own. [`sabotage`] runs it with one
//! protection left out, beside one with all of them, and lets the same fault strike both.

pub mod sabotage;
mod soak;
mod stage;
mod tap;

pub use soak::{Soak, Soaked};
pub use stage::{PATIENCE, Setup, Stage};
pub use tap::{Published, Tap};
