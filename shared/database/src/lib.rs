//! PostgreSQL as every service uses it.
//!
//! - [`pool()`]: a pool that never lends a connection inside a transaction that an earlier borrower left open.
//! - [`WorkerConnection`]: the connection that a worker keeps between its rounds.
//! - [`prepare()`]: waits for the server at start, checks it, and migrates the schema.
//! - [`Fault`]: whose fault a failed statement is; [`is_unavailable`], [`is_locked`].
//! - [`DatabaseHealth`]: whether the database answers, for `/readyz`.
//! - [`Retention`]: erases old rows in small windows, and not while a [`ClockWatch`] finds the clock suspect.

mod clock_watch;
mod errors;
mod health;
mod pool;
mod prepare;
mod read_only;
mod retention;
mod stale_plans;
mod url;
mod worker_connection;

pub use clock_watch::ClockWatch;
pub use errors::{Fault, is_locked, is_unavailable};
pub use health::DatabaseHealth;
pub use pool::{PoolKind, pool};
pub use prepare::{InvalidDatabase, prepare};
pub use retention::{Erase, Retention, Round, Window};
pub use url::DatabaseUrl;
pub use worker_connection::{RoundConnection, WorkerConnection};
