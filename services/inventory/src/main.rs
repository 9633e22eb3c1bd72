//! The inventory service: reserves stock for each order, once, and publishes the answer.

use std::process::ExitCode;

use inventory::{INBOX, SERVICE, Settings, StockHandler};
use messaging::SharedHandler;
use service::{ConsumerTasks, Health, Needed, Process, RelayTasks};

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let settings: Settings = service::load(&SERVICE);
    settings.check();
    let common = &settings.common;
    let mut process = Process::start(&SERVICE, settings.http_address, common)?;
    let relays = RelayTasks::new(&process, common, &settings.publisher);
    let consumer = ConsumerTasks::new(&process, INBOX, common, &settings.consumer);
    let health = Health::new()
        .with("database", Needed::Yes, process.database())
        .with("broker", Needed::Yes, consumer.probe())
        .with("relays", Needed::No, relays.probe())
        .with("dead letters", Needed::No, consumer.collector_probe());
    process.serve_health(health);

    if process.prepare().await {
        let handler = SharedHandler::new(StockHandler::new(consumer.pool(), relays.wake()));
        process.watch_database();
        process.serve_admin(consumer.admin_routes(handler.clone()).merge(relays.admin_routes()));
        relays.start(&mut process);
        consumer.start(&mut process, handler);
    }
    Ok(process.run().await)
}
