//! The transactional outbox: events are written in the transaction of the change that they describe, and a relay
//! publishes them afterwards.
//!
//! - [`append()`]: inserts events in the caller's transaction. Either both are there afterwards, or neither.
//! - [`Relay`]: claims a batch by lanes, publishes it, marks what was confirmed ([`Relay::step`]), and repeats
//!   ([`Relay::run`]).
//! - [`store`]: what the relay needs of a database, so that the simulation can replace it.
//! - [`Wake`]: wake-ups, so that a new event does not wait for the next poll. Nothing relies on them.
//! - [`retention()`]: erases published events after a while. [`observe_backlog`]: what is pending, for `/metrics`.
//!
//! This gives *at-least-once* delivery: a crash between the broker's confirm and the relay's mark publishes an event
//! again, with the same id. `shared/inbox` drops the second copy.

mod append;
mod backlog;
mod held_lanes;
pub mod parked_events;
mod postgres;
mod relay;
mod retention;
mod scan_watermark;
pub mod store;
mod wake;

pub use append::append;
pub use backlog::observe_backlog;
pub use postgres::{
    MAX_NACKED_ATTEMPTS, PostgresStore, PostgresTransaction, RETRY_SECONDS, mark_published_and_commit,
    mark_refused, try_write,
};
pub use relay::{Relay, RelayOptions, Step};
pub use retention::retention;
pub use wake::{Wake, listen};

/// The tables of an outbox, to be applied in the schema of the service that owns it.
pub static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../../migrations/outbox");

/// A failed operation on the outbox: `failed to <verb> <object>`, with its cause.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    what: &'static str,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl Error {
    pub fn new(what: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { what, source: source.into() }
    }
}

/// For `.map_err(failed("failed to …"))`: says what failed, and keeps the cause.
fn failed(what: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |source| Error::new(what, source)
}
