//! The inventory service, composed from the lab's parts. Compare with `services/inventory/src/main.rs`.

use std::process::ExitCode;

use inventory::{INBOX, SERVICE, Settings, StockHandler};
use messaging::SharedHandler;
use service::{ConsumerTasks, Health, Needed, Process, RelayTasks};

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    sabotage::crash::arm_from_env();
    let sabotage = sabotage::sabotage_from_env();
    let mut settings: Settings = service::load(&SERVICE);
    sabotage::ignore_cancels(sabotage, &mut settings.common.amqp_url).await?;
    let common = &settings.common;
    let mut process = Process::start(&SERVICE, settings.http_address, common)?;
    let relays = RelayTasks::new(&process, common, &settings.publisher);
    let consumer = ConsumerTasks::new(&process, INBOX, common, &settings.consumer);
    process.serve_health(
        Health::new().with("database", Needed::Yes, sabotage::database(sabotage, process.database())).with(
            "broker",
            Needed::Yes,
            consumer.probe(),
        ),
    );
    if process.prepare().await {
        let handler = SharedHandler::new(StockHandler::new(consumer.pool(), relays.wake()));
        process.watch_database();
        process.serve_admin(consumer.admin_routes(handler.clone()).merge(relays.admin_routes()));
        relays.start_with(&mut process, sabotage::relay(sabotage));
        sabotage::run_consumer(&mut process, consumer, INBOX.consumer, handler, sabotage).await;
    }
    Ok(process.run().await)
}
