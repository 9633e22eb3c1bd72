//! PostgreSQL as every service uses it.
//!
//! - [`DatabaseUrl`]: one host or several. Connections go to the server that accepts writes.
//! - [`Pool`]: lends connections, and closes each whose borrower has not come to its end. [`Pool::await_replication`]: before
//!   something is done outside that rests on a read.
//! - [`prepare()`]: waits for the server at start, checks it, and migrates the schema.
//! - [`Fault`]: whose fault a failed statement is; [`is_unavailable`], [`is_locked`]. [`within_deadline`]: an end for
//!   each wait.
//! - [`DatabaseHealth`]: whether the database answers, for `/readyz`. [`observe`]: figures from it, for `/metrics`.
//! - [`AgeWatermark`]: from which age on a scan reads open rows.
//! - [`Retention`]: erases old rows in small windows, and not while a [`ClockWatch`] finds the clock suspect.

mod age_watermark;
mod errors;
mod health;
mod pool;
mod prepare;
mod retention;
mod session_settings;
mod url;

pub use age_watermark::{AgeScan, AgeWatermark};
pub use errors::{Fault, SQLSTATES, is_locked, is_unavailable, within_deadline};
pub use health::{DatabaseHealth, observe};
pub use pool::{Pool, Session};
pub use prepare::{InvalidDatabase, prepare, prepare_within};
pub use retention::{ClockWatch, Erase, Retention, Round, Window};
pub use session_settings::PoolKind;
pub use url::{DatabaseUrl, ServerLogin};
