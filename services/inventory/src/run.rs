use std::process::ExitCode;

use messaging::SharedHandler;
use service::{ConsumerTasks, Health, Needed, Parts, Process, RelayTasks};

use crate::{INBOX, SERVICE, Settings, StockHandler};

/// Runs the inventory service until it is stopped: it reserves stock for each order, once, and publishes the answer.
///
/// # Errors
/// When the process cannot start.
pub async fn run(parts: impl Parts) -> anyhow::Result<ExitCode> {
    let Settings { http_address, common, publisher, consumer } = service::load(&SERVICE, &parts).await?;
    let mut process = Process::start(&SERVICE, http_address, common)?;
    let relays = RelayTasks::new(&process, publisher);
    let consumer = ConsumerTasks::new(&process, INBOX, consumer);
    let health = Health::new()
        .with("database", Needed::Yes, parts.database(process.database()))
        .with("broker", Needed::Yes, consumer.probe())
        .with("relays", Needed::No, relays.probe())
        .with("dead letters", Needed::No, consumer.collector_probe());
    process.serve_health(health);

    if process.prepare().await {
        let handler = SharedHandler::new(StockHandler::new(consumer.pool(), relays.wake()));
        process.watch_database();
        process.serve_admin(consumer.admin_routes(handler.clone()).merge(relays.admin_routes()));
        parts.start_relays(relays, &mut process).await?;
        parts.start_consumer(consumer, handler, &mut process).await;
    }
    Ok(process.run().await)
}
