//! What every service here is wired from, and nothing that only one of them does.
//!
//! - [`Relays`]: what the service has written into its outbox is published; with what wakes, watches and clears up.
//! - [`Intake`]: what others have published is applied, once; with the dead letters, and the memory of what was applied.
//! - [`settings`]: what these have to be told, the same for each service under its own prefix.
//!
//! A service brings its name, its handler and its tables. The walls stay where they are: `outbox` and `inbox` know no
//! broker, `broker` knows no database, and this crate is where they meet.

mod intake;
mod relays;
pub mod settings;

pub use intake::{Intake, Subscription};
pub use relays::Relays;
