//! What every service stands on. Nothing here knows what an order is.
//!
//! - [`settings`]: environment variables into one documented struct; a wrong one ends the start with one line.
//! - [`telemetry`]: structured logs and Prometheus metrics.
//! - [`database`]: a pool that cannot pass on a forgotten transaction; waiting and migrating at start.
//! - [`Health`]: what `/livez` and `/readyz` say, and why.
//! - [`http`]: a server with bounded waits and an orderly end.
//! - [`admin`]: the operators' door, apart from the public one; [`problem`]: what they are told when it is refused.
//! - [`Supervisor`]: no task dies silently, and all stop within a deadline.

pub mod admin;
pub mod database;
mod health;
pub mod http;
pub mod problem;
pub mod settings;
mod supervisor;
pub mod telemetry;

pub use health::{Health, Needed};
pub use supervisor::Supervisor;
