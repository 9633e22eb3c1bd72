//! Systems that are set up to be broken in ways that a running one does not offer.
//!
//! [`Stage`] is a system with a database and a virtual host of its own. [`experiments`] run two of them, one complete and
//! one with a protection left out, and inject the same fault into both.

mod broker_api;
mod crash_file;
pub mod experiments;
mod proxied;
mod stage;
mod tap;

pub use broker_api::BrokerApi;
pub(crate) use crash_file::is_stopped;
pub use crash_file::{CrashFile, await_stop, resume_process};
pub use proxied::{PROXY_ROUTE, proxied};
pub(crate) use proxied::{route, through};
pub(crate) use stage::leave_out;
pub use stage::{CONDITION_DEADLINE, Stage};
pub use tap::{Published, Tap};
pub use testbed::Setup;
