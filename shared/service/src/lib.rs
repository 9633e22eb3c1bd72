//! What every service is assembled from. The story of start and stop is in [`Process`].
//!
//! - [`RelayTasks`]: publish what the service has written into its outbox.
//! - [`ConsumerTasks`]: apply what other services have published, once.
//! - [`settings`]: their settings, the same for each service under its own prefix.
//!
//! A service brings its name, its tables, its handler and its routes. `outbox` and `inbox` do not know the broker, and
//! `broker` does not know the database; they meet here.

mod consumer_tasks;
mod process;
mod relay_tasks;
pub mod settings;

pub use consumer_tasks::ConsumerTasks;
pub use process::{Process, Service, load};
pub use relay_tasks::RelayTasks;
