//! A TCP proxy that injects network faults between a service and PostgreSQL, RabbitMQ or an HTTP server.
//!
//! ```no_run
//! use std::time::Duration;
//! use fault_proxy::{Direction, Effect, Fault, Proxy, Route};
//!
//! # async fn example() -> Result<(), fault_proxy::Error> {
//! let proxy = Proxy::start(vec![Route::new("postgres", "127.0.0.1:5432")]).await?;
//! let address = proxy.address("postgres")?;
//! // The client connects to `address`. Its first COMMIT reaches the server; the answer never reaches the client.
//! let commit = Effect::ResetOnPattern { pattern: b"COMMIT".to_vec(), forward: true };
//! let fault = Fault::new(commit, Direction::TowardUpstream, Duration::from_secs(60)).times(1);
//! proxy.inject("postgres", fault).await?;
//! proxy.until("postgres", Duration::from_secs(30), |stats| stats.resets == 1).await?;
//! # Ok(())
//! # }
//! ```

mod active_faults;
mod addresses;
mod connection;
mod control;
mod control_fault;
mod control_problem;
mod drained;
mod effects;
mod error;
mod failed_sockets;
mod fault;
mod fault_view;
mod listener;
mod open_connection;
mod pattern;
mod proxy;
mod pump;
mod queue;
mod route;
mod route_state;
mod stats;

pub use error::Error;
pub use fault::{Direction, Effect, Fault, MAX_DELAY, MAX_FAULT_DURATION, MAX_PATTERN_BYTES};
pub use proxy::Proxy;
pub use route::{DEFAULT_MAX_CONNECTIONS, Route};
pub use route_state::MAX_FAULTS;
pub use stats::Stats;
