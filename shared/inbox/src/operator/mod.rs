//! What an operator can do about dead letters: look, apply again, give up. Each answer is a named outcome.
//!
//! The functions are here so that tests can drive them without HTTP; [`routes()`] is what the services serve.

mod discard;
mod look;
mod replay;
mod routes;

use serde::Serialize;
use time::OffsetDateTime;

pub use discard::{Discard, discard};
pub use look::{Letter, Summary, list, show};
pub use replay::{Again, MOST, Outcome, Rules, replay};
pub use routes::routes;

/// Which letters: each condition that is given narrows it down.
#[derive(Debug, Clone, Default)]
pub struct Which {
    /// These, at most [`MOST`], also if they were settled before. Without ids only what is unresolved is meant.
    pub ids: Option<Vec<i64>>,
    /// Those that arrived at this moment or later, by the database's clock.
    pub from: Option<OffsetDateTime>,
    /// Those that arrived before this moment.
    pub to: Option<OffsetDateTime>,
    /// Those behind this id, where the last page ended. Without ids only.
    pub after: i64,
}

/// One page of something.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// What `after` has to be for the next page; `None` on the last.
    pub next: Option<i64>,
}
