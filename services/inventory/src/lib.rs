//! The inventory service. `stock_handler` is where events become effects, once, and effects become events.

mod run;
mod stock_handler;

use inbox::Inbox;
use rabbitmq::topology;
use service::Service;
use sqlx::migrate::Migrator;

pub use run::{Settings, run};
pub use stock_handler::StockHandler;

pub const INBOX: Inbox = Inbox { consumer: "inventory", queue: topology::INVENTORY, keeps_order: true };

static OWN_MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/inventory");

/// All tables of the service's schema.
pub static MIGRATIONS: [&Migrator; 3] = [&outbox::MIGRATIONS, &inbox::MIGRATIONS, &OWN_MIGRATIONS];

pub static SERVICE: Service = Service {
    name: "inventory",
    prefix: "INVENTORY_",
    http_port: 8081,
    migrations: &MIGRATIONS,
    own_queue: None,
};
