//! The transactional outbox: events are written in the transaction of the change that they tell of, and a relay
//! publishes them afterwards.
//!
//! - [`append()`]: a row in the caller's transaction. Either both are there afterwards, or neither.
//! - [`Relay`]: claims a batch by lanes, publishes it, marks what was confirmed ([`Relay::step`]), again and again
//!   ([`Relay::run`]).
//! - [`store`]: what the relay needs of a database, so that the simulation can stand in for one.
//! - [`Wake`]: why a new event does not wait for the next poll. Three wake-ups, none of which anything relies on.
//! - [`Retention`]: published events leave after a while; nothing that is owed ever does.
//! - [`operator`]: what people can do about events that are parked, and about published ones that were lost on the way.
//! - [`backlog`]: how much is owed and for how long, for `/metrics`.
//!
//! What this buys is *at-least-once* delivery: a crash between the broker's confirm and our mark publishes an event
//! again, with the same id. `shared/inbox` drops the second copy.

mod append;
pub mod backlog;
mod claim;
mod floor;
mod mark;
pub mod operator;
mod postgres;
mod relay;
mod retention;
#[cfg(feature = "drill")]
mod sabotage;
pub mod store;
mod wake;

pub use append::append;
pub use mark::RETRY_SECONDS;
pub use postgres::{LockedLanes, PostgresStore};
pub use relay::{Relay, RelayOptions, Step};
pub use retention::{Retention, Round};
pub use wake::{Wake, listen, notify_others};

/// The tables of an outbox, to be applied in the schema of the service that owns it.
pub static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../../migrations/outbox");

/// The database did not do as it was asked.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    what: &'static str,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl Error {
    /// What was being done, and why it failed.
    pub fn new(what: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { what, source: source.into() }
    }

    /// Why it failed: for those who decide by the cause.
    pub fn into_source(self) -> Box<dyn std::error::Error + Send + Sync> {
        self.source
    }
}

/// For `.map_err(failed("…"))`: says what was being done, and keeps the cause.
fn failed(what: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |source| Error::new(what, source)
}
