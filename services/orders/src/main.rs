//! The order service: the HTTP API, the relays, and the consumer that moves orders on, in one process.

use std::process::ExitCode;

use messaging::SharedHandler;
use orders::{AppState, INBOX, OrderHandler, SERVICE, Settings, api, idempotency_key, open_orders};
use service::{ConsumerTasks, Health, Needed, Process, RelayTasks};

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let settings: Settings = service::load(&SERVICE);
    settings.check();
    let common = &settings.common;
    let mut process = Process::start(&SERVICE, settings.http_address, common)?;
    let relays = RelayTasks::new(&process, common, &settings.publisher);
    let consumer = ConsumerTasks::new(&process, INBOX, common, &settings.consumer);
    let state = AppState::new(&settings, relays.wake());
    // Orders are accepted without a broker: only the database is needed.
    let health = Health::new()
        .with("database", Needed::Yes, process.database())
        .with("broker", Needed::No, relays.probe())
        .with("consumer", Needed::No, consumer.probe())
        .with("dead letters", Needed::No, consumer.collector_probe());
    process.serve(api::router(state.clone())?, health);

    if process.prepare().await && process.read_at_start("the catalogue", || state.read_catalogue()).await? {
        let handler = SharedHandler::new(OrderHandler::new(consumer.pool(), relays.wake()));
        process.watch_database();
        let admin = consumer.admin_routes(handler.clone()).merge(relays.admin_routes());
        process.serve_admin(admin.merge(open_orders::admin_routes(process.operations())));
        let keys = idempotency_key::retention(process.operations(), settings.keep_idempotency_keys);
        process.spawn("key retention", keys.run(process.stop()));
        let watch = open_orders::watch(state, settings.answer_within, consumer.caught_up(), process.stop());
        process.spawn("open orders", watch);
        relays.start(&mut process);
        consumer.start(&mut process, handler);
    }
    Ok(process.run().await)
}
