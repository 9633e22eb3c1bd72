//! The billing service. `payment_handler` is where events become pending payments, once; `payment_worker` calls the payment
//! provider for them; `provider_calls` is their limit; `payment_provider` is the provider's HTTP API.

mod due_payments;
mod payment_handler;
mod payment_provider;
mod payment_worker;
mod provider_answers;
mod provider_calls;
mod run;

use inbox::Inbox;
use rabbitmq::topology;
use service::Service;
use sqlx::migrate::Migrator;

pub use payment_handler::PaymentHandler;
pub use payment_provider::{HttpPaymentProvider, PaymentProvider, ProviderResponse};
pub use payment_worker::PaymentWorker;
pub use provider_calls::ProviderCalls;
pub use run::{Settings, run};

pub const INBOX: Inbox = Inbox { consumer: "billing", queue: topology::BILLING, keeps_order: true };

static OWN_MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/billing");

/// All tables of the service's schema.
pub static MIGRATIONS: [&Migrator; 3] = [&outbox::MIGRATIONS, &inbox::MIGRATIONS, &OWN_MIGRATIONS];

pub static SERVICE: Service = Service {
    name: "billing",
    prefix: "BILLING_",
    http_port: 8082,
    migrations: &MIGRATIONS,
    own_queue: None,
};
