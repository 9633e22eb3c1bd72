//! The inventory service. `keep_stock` is where events become effects, once, and effects become events.

mod keep_stock;
mod settings;

use sqlx::migrate::Migrator;

pub use keep_stock::{CONSUMER, KeepStock};
pub use settings::{PREFIX, Settings};

static OWN_MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/inventory");

/// Everything that the service's schema is made of.
pub static MIGRATIONS: [&Migrator; 3] = [&outbox::MIGRATIONS, &inbox::MIGRATIONS, &OWN_MIGRATIONS];
