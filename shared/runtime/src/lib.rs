//! What every service process needs, whatever its business.
//!
//! - [`settings`]: environment variables into one documented struct; an invalid one ends the start with one line.
//! - [`telemetry`]: structured logs and Prometheus metrics.
//! - [`Health`]: what `/livez` and `/readyz` answer.
//! - [`http`]: a server with bounded waits and an orderly stop. [`body`]: bounds what a client sends. [`problem`]: errors.
//! - [`Supervisor`]: runs the tasks of the process; if one ends early, the process ends.

pub mod body;
mod connection;
mod foreign_page;
mod health;
pub mod http;
mod log_writer;
mod own_process;
pub mod problem;
pub mod settings;
mod supervisor;
pub mod telemetry;

pub use health::{Health, Needed};
pub use log_writer::flush as flush_log;
pub use own_process::request_if_asked;
pub use supervisor::Supervisor;
