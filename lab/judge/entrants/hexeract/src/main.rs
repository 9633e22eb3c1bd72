//! The adapter of crates.io's hexeract: its outbox worker calls a handler for each event, as in its README, and the handler
//! publishes with hexeract's own RabbitMQ transport, persistent, mandatory and confirmed. `set-up` creates its tables.

use std::{env, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use hexeract::{
    bus::{BusError, Exchange, ExchangeKind, RawBusPublish as _},
    bus_rabbitmq::RabbitMqTransport,
    core::HandlerContext,
    outbox::{Event, Handler, OutboxError},
    outbox_sql::{PgOutboxWorkerBuilder, postgres},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::PgPool;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Mutex,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const TABLE: &str = "outbox";

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Wanted(Value);

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Unwanted(Value);

impl Event for Wanted {
    const EVENT_TYPE: &'static str = "judge.wanted";
}

impl Event for Unwanted {
    const EVENT_TYPE: &'static str = "judge.unwanted";
}

/// The transport does not reconnect: after a failure the next event opens another.
#[derive(Clone)]
struct Publish(Arc<Mutex<Option<RabbitMqTransport>>>);

impl Publish {
    async fn publish(&self, event_type: &str, body: &Value) -> Result<(), OutboxError> {
        let failed = |error: &dyn std::fmt::Display| OutboxError::Internal(error.to_string());
        let id: Uuid = body["id"].as_str().unwrap_or_default().parse().map_err(|error| failed(&error))?;
        let mut open = self.0.lock().await;
        let transport = match open.take() {
            Some(transport) => transport,
            None => connect().await.map_err(|error| failed(&error))?,
        };
        // `publish` would give each copy another id.
        let payload = body.to_string();
        let published = transport.publish_raw(event_type, id, event_type, payload.as_bytes()).await;
        if matches!(published, Ok(()) | Err(BusError::Unroutable { .. })) {
            *open = Some(transport);
        }
        published.map_err(|error| failed(&error))
    }
}

async fn connect() -> Result<RabbitMqTransport> {
    let exchange = Exchange::new(env::var("EXCHANGE")?, ExchangeKind::Topic)?;
    Ok(RabbitMqTransport::with_exchange(&env::var("AMQP_URL")?, exchange).await?)
}

impl Handler<Wanted> for Publish {
    type Error = OutboxError;

    async fn handle(&self, event: Wanted, _: &HandlerContext) -> Result<(), OutboxError> {
        self.publish(Wanted::EVENT_TYPE, &event.0).await
    }
}

impl Handler<Unwanted> for Publish {
    type Error = OutboxError;

    async fn handle(&self, event: Unwanted, _: &HandlerContext) -> Result<(), OutboxError> {
        self.publish(Unwanted::EVENT_TYPE, &event.0).await
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let pool =
        PgPool::connect(&env::var("DATABASE_URL")?).await.context("failed to connect to the database")?;
    if env::args().nth(1).as_deref() == Some("set-up") {
        postgres::ensure_schema(&pool, TABLE).await?;
        return Ok(postgres::ensure_dead_letter_schema(&pool, TABLE).await?);
    }
    let publish = Publish(Arc::new(Mutex::new(Some(connect().await?))));
    let worker = PgOutboxWorkerBuilder::new(pool)
        .table_name(TABLE)
        .dead_letter_table(format!("{TABLE}_dead_letter"))
        .register_handler::<Wanted, _>(publish.clone())
        .register_handler::<Unwanted, _>(publish)
        // A lease is the batch times this: ten seconds instead of five minutes, so that another instance takes over while
        // the judge waits.
        .dispatch_timeout(Duration::from_secs(1))
        .build()?;
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let relaying = tokio::spawn(worker.run(stop.clone()));
    println!("RELAYING");
    terminate.recv().await;
    stop.cancel();
    Ok(relaying.await??)
}
