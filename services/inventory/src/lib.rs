//! The inventory service. `reserve_stock` is where events become effects, once.

mod reserve_stock;
mod settings;

use sqlx::migrate::Migrator;

pub use reserve_stock::ReserveStock;
pub use settings::Settings;

static OWN_MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/inventory");

/// Everything that the service's schema is made of.
pub static MIGRATIONS: [&Migrator; 2] = [&inbox::MIGRATIONS, &OWN_MIGRATIONS];
