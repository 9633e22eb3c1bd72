//! The order service, composed from the lab's parts. Compare with `services/orders/src/main.rs`.

use std::process::ExitCode;

use messaging::SharedHandler;
use orders::{AppState, INBOX, OrderHandler, SERVICE, Settings, api, open_orders};
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
    let state = AppState::new(&settings, relays.wake());
    let health =
        Health::new().with("database", Needed::Yes, sabotage::database(sabotage, process.database()));
    process.serve(sabotage::api(sabotage, api::router(state.clone())?), health);
    if process.prepare().await && process.read_at_start("the catalogue", || state.read_catalogue()).await? {
        let handler = SharedHandler::new(OrderHandler::new(consumer.pool(), relays.wake()));
        process.watch_database();
        process.serve_admin(consumer.admin_routes(handler.clone()).merge(relays.admin_routes()));
        let caught_up = sabotage::caught_up(sabotage, consumer.caught_up());
        let watch = open_orders::watch(state, settings.answer_within, caught_up, process.stop());
        process.spawn("open orders", watch);
        relays.start_with(&mut process, sabotage::relay(sabotage));
        sabotage::run_consumer(&mut process, consumer, INBOX.consumer, handler, sabotage).await;
    }
    Ok(process.run().await)
}
