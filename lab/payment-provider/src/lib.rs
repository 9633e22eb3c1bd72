//! A stand-in for the payment provider: another company, whose HTTP API billing calls to charge and refund customers.
//!
//! It behaves as real providers do where it matters here. A request without an `Idempotency-Key` is a new charge, however
//! often it is sent. With a key the customer is charged once, and every repetition gets the first answer. It also fails as
//! real providers fail, when it is told to. Reading order: `charges`, `refunds`, `faults`, `api`.

mod api;
mod charges;
mod faults;
mod idempotency_key;
mod problems;
mod read_charges;
mod refunds;
mod settings;

use database::Pool;
use sqlx::migrate::Migrator;

pub use api::router;
pub use charges::DECLINED_CUSTOMERS;
pub use settings::Settings;

static OWN_MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/provider");

/// All tables of the provider's schema.
pub static MIGRATIONS: [&Migrator; 1] = [&OWN_MIGRATIONS];

/// What the handlers share. Cheap to clone.
#[derive(Clone)]
pub struct Provider {
    pool: Pool,
    faults: faults::Faults,
}

impl Provider {
    /// A provider without faults.
    pub fn new(pool: Pool) -> Self {
        Self { pool, faults: faults::Faults::default() }
    }
}
