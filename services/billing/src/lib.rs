//! The billing service. `keep_accounts` is where events become effects, once; `teller` is where what is owed is asked of
//! the payment provider; `provider` is how.

mod keep_accounts;
mod provider;
mod settings;
mod teller;

use sqlx::migrate::Migrator;

pub use keep_accounts::{CONSUMER, KeepAccounts};
pub use provider::{Answer, Provider};
pub use settings::{PREFIX, Settings};
pub use teller::{Teller, TellerOptions};

static OWN_MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/billing");

/// Everything that the service's schema is made of.
pub static MIGRATIONS: [&Migrator; 3] = [&outbox::MIGRATIONS, &inbox::MIGRATIONS, &OWN_MIGRATIONS];
