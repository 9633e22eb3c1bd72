//! A stand-in for the payment provider: a company outside the house, which the shop's billing asks for money over HTTP.
//!
//! It behaves as real providers do in what matters here. A request without an `Idempotency-Key` is a new charge, however
//! often it comes; with one it is charged once, and everybody who asks again gets the first answer. And it fails in the
//! ways in which real providers fail, when it is told to. Reading order: `charges`, `refunds`, `faults`, `api`.

mod api;
mod charges;
mod faults;
mod idempotency_key;
mod problem;
mod read_charges;
mod refunds;
mod settings;

use sqlx::{PgPool, migrate::Migrator};

pub use api::router;
pub use charges::DECLINED_CUSTOMERS;
pub use settings::Settings;

static OWN_MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/provider");

/// Everything that the provider's schema is made of.
pub static MIGRATIONS: [&Migrator; 1] = [&OWN_MIGRATIONS];

/// What the handlers share. Cheap to clone.
#[derive(Clone)]
pub struct Provider {
    pool: PgPool,
    faults: faults::Faults,
}

impl Provider {
    /// Without faults. `pool` is for single statements: nobody here begins a transaction.
    pub fn new(pool: PgPool) -> Self {
        Self { pool, faults: faults::Faults::default() }
    }
}
