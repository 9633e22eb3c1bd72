//! The billing service. `keep_accounts` is where events become effects, once.

mod keep_accounts;
mod settings;

use sqlx::migrate::Migrator;

pub use keep_accounts::{CONSUMER, KeepAccounts};
pub use settings::Settings;

static OWN_MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/billing");

/// Everything that the service's schema is made of.
pub static MIGRATIONS: [&Migrator; 2] = [&inbox::MIGRATIONS, &OWN_MIGRATIONS];
