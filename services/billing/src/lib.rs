//! The billing service. `issue_invoice` is where events become effects, once.

mod issue_invoice;
mod settings;

use sqlx::migrate::Migrator;

pub use issue_invoice::IssueInvoice;
pub use settings::Settings;

static OWN_MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/billing");

/// Everything that the service's schema is made of.
pub static MIGRATIONS: [&Migrator; 2] = [&inbox::MIGRATIONS, &OWN_MIGRATIONS];
