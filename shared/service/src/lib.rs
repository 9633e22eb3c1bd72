//! What every service process is assembled from. The story of start and stop is in [`Process`].
//!
//! - [`Assembly`]: a service that consumes and publishes. [`Parts`]: what the lab's programs replace in it.
//! - [`RelayTasks`]: publish what the service has written into its outbox.
//! - [`ConsumerTasks`]: apply what other services have published, once.
//! - [`settings`]: their settings, the same for each service under its own prefix. [`environment`]: reads them.
//! - [`Supervisor`]: runs the tasks of the process; if one ends early, the process ends.
//! - [`http`]: a server with bounded waits and an orderly stop. [`admission`]: which requests it works on. [`problem`]: errors.
//! - [`Health`]: what `/livez` and `/readyz` answer. The routes under `/admin` are behind a token.
//! - [`telemetry`]: structured logs and Prometheus metrics. [`otlp`]: spans.
//!
//! A service brings its name, its tables, its handler and its routes. `outbox` and `inbox` do not know the broker, and
//! `rabbitmq` does not know the database; they meet here.

mod admin;
pub mod admission;
mod connection;
pub mod environment;
pub mod http;
pub mod otlp;
mod parts;
pub mod problem;
mod process;
pub mod settings;
mod supervisor;
pub mod telemetry;

pub use admin::Params;
pub use connection::slow_body;
pub use http::{Health, Needed};
pub use parts::{Assembly, ConsumerTasks, Parts, Product, RelayTasks};
pub use process::{Process, Service, command, load, request_if_asked};
pub use supervisor::Supervisor;
pub use telemetry::flush as flush_log;
