use std::process::ExitCode;

use axum::Router;
use messaging::SharedHandler;
use outbox::Wake;
use service::{ConsumerTasks, Health, Needed, Parts, Process, RelayTasks};

use crate::{AppState, INBOX, OrderHandler, SERVICE, Settings, api, idempotency_key, open_orders};

/// Runs the order service until it is stopped: the HTTP API, the relays, and the consumer that moves orders on, in one process.
/// `routes` is given the product's routes and returns those to serve.
///
/// # Errors
/// When the process cannot start.
pub async fn run(
    parts: impl Parts,
    routes: impl FnOnce(Router, &Settings, &Wake) -> anyhow::Result<Router>,
) -> anyhow::Result<ExitCode> {
    let settings: Settings = service::load(&SERVICE, &parts).await?;
    let mut process = Process::start(&SERVICE, settings.http_address, settings.common.clone())?;
    let relays = RelayTasks::new(&process, settings.publisher.clone());
    let consumer = ConsumerTasks::new(&process, INBOX, settings.consumer.clone());
    let wake = parts.wake(relays.wake());
    let state = AppState::new(&settings, wake.clone());
    // Orders are accepted without a broker: only the database is needed.
    let health = Health::new()
        .with("database", Needed::Yes, parts.database(process.database()))
        .with("broker", Needed::No, relays.probe())
        .with("consumer", Needed::No, consumer.probe())
        .with("dead letters", Needed::No, consumer.collector_probe());
    process.serve(routes(api::router(state.clone())?, &settings, &wake)?, health);

    if process.prepare().await && process.read_at_start("the catalogue", || state.read_catalogue()).await? {
        let handler = SharedHandler::new(OrderHandler::new(consumer.pool(), wake));
        process.watch_database();
        let admin = consumer.admin_routes(handler.clone()).merge(relays.admin_routes());
        process.serve_admin(admin.merge(open_orders::admin_routes(process.operations())));
        let keys = idempotency_key::retention(process.operations(), settings.keep_idempotency_keys);
        process.spawn("key retention", keys.run(process.stop()));
        let caught_up = parts.caught_up(consumer.caught_up());
        let watch = open_orders::watch(state, settings.answer_within, caught_up, process.stop());
        process.spawn("open orders", watch);
        parts.start_relays(relays, &mut process).await?;
        parts.start_consumer(consumer, handler, &mut process).await;
    }
    Ok(process.run().await)
}
