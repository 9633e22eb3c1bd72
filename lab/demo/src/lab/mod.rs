//! What drills, the soak, experiments and tests use to look into a system and to break it.

mod broker_api;
mod copy_order;
mod crash_file;
mod tap;

use std::time::Duration;

pub use broker_api::BrokerApi;
pub(crate) use copy_order::{copy_order, foreign_event};
pub(crate) use crash_file::is_stopped;
pub use crash_file::{CrashFile, await_stop, resume_process};
pub use tap::{Published, Tap};
pub use testbed::Setup;

/// How long a condition may take to come true on a busy machine: [longer](testbed::longer) on a slow one. It measures nothing.
pub const CONDITION_DEADLINE: Duration = Duration::from_secs(180);
