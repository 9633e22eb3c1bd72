//! The inventory service. `keep_stock` is where events become effects, once.

mod keep_stock;
mod settings;

use sqlx::migrate::Migrator;

pub use keep_stock::{CONSUMER, KeepStock};
pub use settings::Settings;

static OWN_MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/inventory");

/// Everything that the service's schema is made of.
pub static MIGRATIONS: [&Migrator; 2] = [&inbox::MIGRATIONS, &OWN_MIGRATIONS];
