//! What an operator can do about the outbox: look at what is parked, have it published again, or give it up; and have
//! published again what a consumer has lost. Each answer is a named outcome.
//!
//! Every function is one statement, and so is safe on a pool on which nobody may begin a transaction. Whoever calls one
//! that has changed something wakes the relays afterwards. [`routes()`] is what the services serve.

mod discard;
mod look;
mod replay;
mod routes;

use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

pub use discard::{Discard, discard};
pub use look::{Event, Parked, list_parked, show};
pub use replay::{Again, Outcome, replay_parked, replay_published};
pub use routes::routes;

/// The most events that one call replays.
pub const MOST: i64 = 1_000;

/// Which events: each condition that is given narrows it down.
#[derive(Debug, Clone, Default)]
pub struct Which {
    /// These, at most [`MOST`].
    pub ids: Option<Vec<Uuid>>,
    /// Those parked, or published, at this moment or later, by the database's clock.
    pub from: Option<OffsetDateTime>,
    /// Those before this moment.
    pub to: Option<OffsetDateTime>,
    /// Those behind this place in the outbox, where the last page ended. Without ids only.
    pub after: i64,
}

/// Under which conditions an event is published again.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Events older than this are refused. It has to be shorter than the time for which consumers remember what they
    /// have applied: a copy of an event that a consumer has forgotten is applied a second time.
    pub within: Duration,
    /// Publish those too. The operator answers for it.
    pub force: bool,
}

/// One page of something.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// What `after` has to be for the next page; `None` on the last.
    pub next: Option<i64>,
}
