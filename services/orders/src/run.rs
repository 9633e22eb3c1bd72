use std::{net::SocketAddr, process::ExitCode, time::Duration};

use axum::Router;
use clap::Parser;
use messaging::SharedHandler;
use outbox::Wake;
use service::{
    ConsumerTasks, Health, Needed, Parts, Process, RelayTasks,
    environment::{age, duration},
    settings::{CommonSettings, ConsumerSettings, PublisherSettings, ServiceSettings},
};

use crate::{AppState, INBOX, OrderHandler, SERVICE, api, idempotency_key, open_orders};

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
        let watch = open_orders::watch(
            state,
            process.operations(),
            settings.answer_within,
            caught_up,
            process.stop(),
        );
        process.spawn("open orders", watch);
        parts.start_relays(relays, &mut process).await?;
        parts.start_consumer(consumer, handler, &mut process).await;
    }
    Ok(process.run().await)
}

/// Settings of the order service, from environment variables.
#[derive(Clone, Parser)]
#[command(name = "orders", version)]
pub struct Settings {
    /// The address of the API, health and metrics.
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub http_address: SocketAddr,

    /// Connections for the API. Each request holds one for the time of one statement.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=200))]
    pub database_connections: u32,

    /// Requests at the same time; further ones are answered with 503 at once. They wait in memory for a connection, so this
    /// bounds the memory. Fewer than the 1024 connections of the listener.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub max_requests: u16,

    /// How long inventory and billing may take to answer, such as 15min or 2days: at least 1s. An order that has waited
    /// longer is cancelled, so it has to be longer than outages usually last.
    #[arg(long, default_value = "15min", value_parser = duration_or_age)]
    pub answer_within: Duration,

    /// How long an `Idempotency-Key` is kept at least, such as 1day. A client that retries later gets a second order.
    #[arg(long, default_value = "1day", value_parser = age)]
    pub keep_idempotency_keys: Duration,

    #[command(flatten)]
    pub common: CommonSettings,

    #[command(flatten)]
    pub publisher: PublisherSettings,

    #[command(flatten)]
    pub consumer: ConsumerSettings,
}

/// With less, orders would be cancelled that are merely in progress.
const MIN_ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// A duration of less than a minute, or an age of up to years.
fn duration_or_age(text: &str) -> Result<Duration, String> {
    duration(text)
        .or_else(|_| age(text))
        .map_err(|_| format!("{text:?} is not a duration such as 15min or 2days"))
}

impl ServiceSettings for Settings {
    fn common(&mut self) -> &mut CommonSettings {
        &mut self.common
    }

    fn check(&self, prefix: &str) -> Result<(), String> {
        self.publisher.check(prefix, &self.common)?;
        self.consumer.check(prefix, &self.common)?;
        if self.answer_within < MIN_ANSWER_WITHIN {
            return Err(format!(
                "{prefix}ANSWER_WITHIN: at least 1s, because the other services take that long when they are busy"
            ));
        }
        Ok(())
    }
}
