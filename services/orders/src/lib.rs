//! The order service. Reading order: `place_order`, the order and its event in one statement; `order_state`, the life of
//! an order; `order_handler`, where the answers of the other services move it; `cancel_order` and `open_orders`, the other
//! ways to an end; `api`.

pub mod api;
mod app_state;
mod cancel_order;
pub mod idempotency_key;
pub mod open_orders;
mod order_handler;
pub mod order_state;
mod place_order;
mod problems;
mod read_orders;

use std::{process::ExitCode, time::Duration};

use axum::Router;
use clap::Args;
use database::PoolKind;
use service::{
    Assembly, Health, Needed, Parts, Service,
    environment::{age, duration, exit_invalid_config},
};
use sqlx::migrate::Migrator;

pub use api::pretty;
pub use app_state::AppState;
pub use order_handler::{INBOX, OrderHandler};
pub use place_order::{read_order, write_order};

static OWN_MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/orders");

/// All tables of the service's schema.
pub static MIGRATIONS: [&Migrator; 3] = [&outbox::MIGRATIONS, &inbox::MIGRATIONS, &OWN_MIGRATIONS];

pub static SERVICE: Service =
    Service { name: "orders", prefix: "ORDERS_", http_port: 8080, migrations: &MIGRATIONS, own_queue: None };

pub type Settings = service::settings::Settings<OrderSettings>;

/// Runs the order service until it is stopped: the HTTP API, the relays, and the consumer that moves orders on, in one
/// process. `routes` is given the product's routes and returns those to serve.
pub async fn run(
    parts: impl Parts,
    routes: impl FnOnce(Router, &Settings, &AppState) -> anyhow::Result<Router>,
) -> anyhow::Result<ExitCode> {
    let (mut service, settings) = Assembly::start::<OrderSettings>(&SERVICE, INBOX, parts)?;
    // An order waits for answers from when its event was published, which the outbox must still know.
    if settings.publisher.keep_published < settings.own.answer_within {
        exit_invalid_config(
            "ORDERS_KEEP_PUBLISHED: at least ORDERS_ANSWER_WITHIN, or orders are cancelled too early",
        );
    }
    if settings.own.relay_only {
        if settings.publisher.relay_workers == 0 {
            exit_invalid_config("ORDERS_RELAY_WORKERS: at least 1 with ORDERS_RELAY_ONLY");
        }
        let health = Health::new().with("database", Needed::Yes, service.process.database());
        let health = health.with("broker", Needed::Yes, service.relays.probe());
        service.process.serve(Router::new(), health);
        if !service.process.prepare().await {
            return Ok(service.process.run().await);
        }
        return service.run_relays().await;
    }
    // From the start: an alert reads its increase, and would not see the first value of a series.
    metrics::counter!("orders_timed_out_total").absolute(0);
    let wake = service.parts.wake(service.relays.wake.clone());
    let pool = service.process.pool("orders", settings.own.database_connections, PoolKind::Statements);
    let state = AppState::new(pool, wake.clone());
    // Orders are accepted without a broker: only the database is needed.
    let health = service.health().with("broker", Needed::No, service.relays.probe()).with(
        "consumer",
        Needed::No,
        service.consumer.probe(),
    );
    service.process.serve(routes(api::router(state.clone(), &settings.own)?, &settings, &state)?, health);
    if !service.process.prepare().await {
        return Ok(service.process.run().await);
    }
    let OrderSettings { answer_within, keep_idempotency_keys, .. } = settings.own;
    let handler = OrderHandler::new(service.consumer.pool(), wake);
    let (operations, stop) = (service.process.operations(), service.process.stop());
    let keys = idempotency_key::retention(operations.clone(), keep_idempotency_keys);
    let caught_up = service.consumer.caught_up();
    let watch = open_orders::watch(
        state,
        operations.clone(),
        answer_within,
        caught_up,
        settings.common.partitions,
        stop.clone(),
    );
    service.process.spawn("key retention", keys.run(stop));
    service.process.spawn("open orders", watch);
    service.admin_routes = open_orders::admin_routes(operations);
    service.run(handler).await
}

/// The settings that only the order service has.
#[derive(Debug, Clone, Args)]
pub struct OrderSettings {
    /// Connections for the API. Each request holds one for the time of one statement.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=200))]
    pub database_connections: u32,

    /// Requests at the same time; further ones are answered with 503 at once. As many as connections are worked on, the others
    /// wait in memory, so this bounds the memory. Fewer than the 1024 connections of the listener.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub max_requests: u16,

    /// How long a request may wait for its turn, for example 500ms; then it is answered with 503. A fifth of it while the queue
    /// never empties. Choose less than clients wait, or the service works for those that have given up.
    #[arg(long, default_value = "500ms", value_parser = duration)]
    pub max_wait: Duration,

    /// How long inventory and billing may take to answer, for example 15min or 2days: at least 1s, at most KEEP_PUBLISHED. An
    /// order that has waited longer is cancelled, so choose more than outages usually last.
    #[arg(long, default_value = "15min", value_parser = answer_within)]
    pub answer_within: Duration,

    /// How long an `Idempotency-Key` is kept at least, for example 1day. A client that retries later gets a second order.
    #[arg(long, default_value = "1day", value_parser = age)]
    pub keep_idempotency_keys: Duration,

    /// Whether this process only publishes the events of others: no API, no consumer. The others then need no relays
    /// (RELAY_WORKERS=0).
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub relay_only: bool,
}

/// For `value_parser`: a duration of less than a minute, or an age of up to years.
fn answer_within(text: &str) -> Result<Duration, String> {
    let limit = duration(text).or_else(|_| age(text));
    let limit = limit.map_err(|_| format!("{text:?} is not a duration such as 15min or 2days"))?;
    // With less, orders would be cancelled that are merely in progress.
    if limit < Duration::from_secs(1) {
        return Err("at least 1s, because the other services take that long when they are busy".into());
    }
    Ok(limit)
}
