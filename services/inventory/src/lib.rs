//! The inventory service. `stock_handler` is where events become effects, once, and effects become events.

mod stock_handler;

use std::process::ExitCode;

use service::{Assembly, Parts, Service, settings::NoSettings};
use sqlx::migrate::Migrator;

pub use stock_handler::{INBOX, StockHandler};

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

/// Runs the inventory service until it is stopped: it reserves stock for each order, once, and publishes the answer.
pub async fn run(parts: impl Parts) -> anyhow::Result<ExitCode> {
    let (mut service, _) = Assembly::start::<NoSettings>(&SERVICE, INBOX, parts)?;
    service.serve_health();
    if !service.process.prepare().await {
        return Ok(service.process.run().await);
    }
    let handler = StockHandler::new(service.consumer.pool(), service.relays.wake.clone());
    service.run(handler).await
}
