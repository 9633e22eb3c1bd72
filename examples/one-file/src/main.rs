//! The transactional outbox in one file: an HTTP service, its message relay and an idempotent consumer. To use it, paste it
//! over `src/main.rs` of an empty project, with:
//!
//! ```toml
//! [dependencies]
//! anyhow = "1"
//! axum = "0.8.9"
//! futures-util = "0.3"
//! lapin = { version = "4.12.3", default-features = false, features = ["tokio"] }
//! serde = { version = "1", features = ["derive"] }
//! serde_json = "1"
//! sqlx = { version = "0.9", default-features = false, features = ["postgres", "runtime-tokio", "uuid"] }
//! tokio = { version = "1", features = ["macros", "net", "rt-multi-thread", "signal", "sync", "time"] }
//! tower-http = { version = "0.7.1", features = ["limit", "trace"] }
//! tracing = "0.1"
//! tracing-subscriber = "0.3"
//! uuid = { version = "1", features = ["serde", "v7"] }
//! ```
//!
//! Kill anything with `kill -9`: each accepted order has one reservation in the end. Left out (`docs/copy-it.md`): an alert on
//! the oldest pending event, retention, parked events, replay, dead letters in a table, `Idempotency-Key`, drained stops, TLS.

use std::{collections::HashSet, convert::Infallible, env, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use axum::{Json, Router, extract::State, http::StatusCode, routing::post};
use futures_util::StreamExt as _;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind};
use lapin::{message::Delivery, options::*, uri::AMQPUri};
use serde::Deserialize;
use serde_json::{Value, json};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, query, query_as};
use tokio::time::{Instant, sleep, timeout};
use tokio::{net::TcpListener, signal::unix, sync::Notify};
use tower_http::{limit::RequestBodyLimitLayer, trace::TraceLayer};
use tracing::{error, info, warn};
use uuid::Uuid;

/// Every wait for a server ends: one that is cut off never answers, and nothing reports an error.
const DEADLINE: Duration = Duration::from_secs(10);
/// When PostgreSQL ends an idle transaction, and with it the locks of a frozen process. Longer than a step may take.
const IDLE_LIMIT: &str = "20s";
/// How late an event is published whose notification was lost.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long the listener trusts a silent connection.
const LISTEN_LIMIT: Duration = Duration::from_secs(60);
/// Over a larger body the broker closes the channel (RabbitMQ 4: 16 MiB), and the confirms of the whole batch are lost.
const MAX_BODY_BYTES: usize = 1024 * 1024;
/// Without a limit the broker delivers the whole queue, and lapin keeps it in memory.
const PREFETCH: u16 = 100;
const QUEUE: &str = "one-file.inventory";
const DEAD_LETTERS: &str = "one-file.inventory.dead";
const ORDER_CREATED: &str = "order.created";

/// The lock is for two processes that start at the same time. The schema is the first of each session's search path.
const TABLES: &str = "
select pg_advisory_xact_lock(hashtext('one_file'));
create schema if not exists one_file;
create table if not exists orders (id uuid primary key, sku text not null, quantity integer not null);
create table if not exists outbox (
    seq               bigint generated always as identity primary key,   -- roughly the order of writing, never a cursor
    event_id          uuid        not null unique,    -- made once, by the writer; the same in every attempt
    aggregate_id      uuid        not null,           -- whose events stay in order
    aggregate_version integer     not null,           -- 1, 2, 3: the writer holds a lock on its aggregate
    routing_key       text        not null,
    payload           json        not null,           -- the message as it will be published
    created_at        timestamptz not null default clock_timestamp(),
    attempts          smallint    not null default 0, -- refusals by the broker
    available_at      timestamptz not null default clock_timestamp(),    -- back-off
    published_at      timestamptz,                    -- null: pending
    unique (aggregate_id, aggregate_version)
);
create index if not exists outbox_pending on outbox (seq) where published_at is null;
create index if not exists outbox_unpublished on outbox (aggregate_id, aggregate_version) where published_at is null;
create table if not exists processed_events (consumer text, event_id uuid, primary key (consumer, event_id));
create table if not exists reservations (order_id uuid not null, sku text not null, quantity integer check (quantity > 0))";

struct App {
    database: PgConnectOptions,
    pool: PgPool,
    amqp: AMQPUri,
    exchange: String,
    /// This process has committed an order.
    committed: Notify,
    /// The relay should look for events.
    wake: Notify,
}

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).init();
    let app = &Arc::new(App::from_environment()?);
    let mode = env::args().nth(1);
    while let Err(error) = within("create the tables", sqlx::raw_sql(TABLES).execute(&app.pool)).await {
        warn!("{error:#}");
        sleep(Duration::from_secs(1)).await;
    }
    // For `cargo demo judge one-file`: it writes into the outbox itself.
    if mode.as_deref() == Some("set-up") {
        return Ok(());
    }
    // All in one task: a panic in one ends the process, and a supervisor starts it again.
    let relaying = async { tokio::join!(repeat("relay", || relay(app)), repeat("listen", || listen(app))) };
    let mut terminate = unix::signal(unix::SignalKind::terminate())?;
    if mode.as_deref() == Some("relay") {
        tokio::select! { _ = relaying => {}, _ = terminate.recv() => {} }
        return Ok(());
    }
    let router = Router::new().route("/orders", post(place_order)).with_state(app.clone());
    let router = router.layer(RequestBodyLimitLayer::new(16 * 1024)).layer(TraceLayer::new_for_http());
    let listener = TcpListener::bind(variable("HTTP_ADDRESS", "127.0.0.1:8085")).await?;
    info!("listening on {}", listener.local_addr()?);
    tokio::select! {
        ended = async { axum::serve(listener, router).await } => ended.context("failed to serve"),
        _ = terminate.recv() => Ok(()),
        _ = relaying => Ok(()),
        _ = repeat("notify", || notify(app)) => Ok(()),
        _ = repeat("consume", || consume(app)) => Ok(()),
    }
}

#[derive(Deserialize)]
struct NewOrder {
    sku: String,
    quantity: i32,
}

/// Queries are checked when they run: the macro `query!` needs a database, or a cache of one, where this file is compiled.
async fn place_order(State(app): State<Arc<App>>, Json(order): Json<NewOrder>) -> (StatusCode, Json<Value>) {
    if !(1..=1000).contains(&order.quantity) || !order.sku.chars().all(|c| c.is_ascii_graphic()) {
        return (
            StatusCode::UNPROCESSABLE_ENTITY,
            Json(json!({ "error": "quantity: 1 to 1000, sku: visible ASCII" })),
        );
    }
    let (order_id, event_id) = (Uuid::now_v7(), Uuid::now_v7());
    let event = json!({
        "specversion": "1.0", "id": event_id, "source": "/orders", "type": "OrderCreated", "subject": order_id,
        "data": { "orderId": order_id, "sku": order.sku, "quantity": order.quantity },
    });
    // One statement writes both rows or none. With BEGIN … COMMIT on a pool of sqlx 0.9.0, a client that hangs up in between
    // leaves a transaction open: the next order is written into it, acknowledged, and rolled back later.
    let write = query(
        "with placed as (insert into orders (id, sku, quantity) values ($1, $2, $3))
         insert into outbox (event_id, aggregate_id, aggregate_version, routing_key, payload)
         values ($4, $1, 1, $5, $6::json)",
    );
    let write = write.bind(order_id).bind(order.sku).bind(order.quantity);
    let write = write.bind(event_id).bind(ORDER_CREATED).bind(event.to_string());
    if let Err(error) = within("write an order", write.execute(&app.pool)).await {
        error!("{error:#}");
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            Json(json!({ "error": "it is unknown whether the order is placed" })),
        );
    }
    app.committed.notify_one();
    (StatusCode::CREATED, Json(json!({ "orderId": order_id })))
}

/// Wakes the relay after a commit. In the order's transaction, NOTIFY holds a lock of the whole database until the flush, and
/// all commits wait for each other. So one statement for many orders, at most a hundred a second. It is only a hint.
async fn notify(app: &App) -> Result<Infallible> {
    loop {
        app.committed.notified().await;
        within("notify", query("notify one_file_outbox").execute(&app.pool)).await?;
        sleep(Duration::from_millis(10)).await;
    }
}

async fn listen(app: &App) -> Result<Infallible> {
    loop {
        let mut listener = within("connect the listener", PgListener::connect_with(&app.pool)).await?;
        within("listen", listener.listen("one_file_outbox")).await?;
        // It does not say what it has missed: `None` and each error mean that the relay should look.
        while let Ok(heard) = timeout(LISTEN_LIMIT, listener.try_recv()).await {
            app.wake.notify_one();
            heard?.context("the connection was lost")?;
        }
    }
}

async fn relay(app: &App) -> Result<Infallible> {
    let mut database = within("connect to PostgreSQL", app.database.connect()).await?;
    let mut barrier = within("connect to PostgreSQL", app.database.connect()).await?;
    // Not the consumer's connection: an alarm of the broker blocks a connection that publishes.
    let (_connection, channel) = within("connect to RabbitMQ", connect(app, "relay")).await?;
    // Without it each publish counts as confirmed at once.
    within("select confirms", channel.confirm_select(ConfirmSelectOptions::default())).await?;
    println!("RELAYING");
    loop {
        let step = within("relay a batch", step(app, &mut database, &mut barrier, &channel));
        if step.await? == 0 {
            let _ = timeout(POLL_INTERVAL, app.wake.notified()).await;
        }
    }
}

/// Claims, publishes and marks a batch in one transaction. After an error, or a crash, its events are published again.
async fn step(
    app: &App,
    database: &mut PgConnection,
    barrier: &mut PgConnection,
    channel: &Channel,
) -> Result<usize> {
    let mut transaction = database.begin().await?;
    // By state, never `seq > last`: an event may commit later than one with a higher `seq`. Only the first pending event of an
    // aggregate: without `not exists`, SKIP LOCKED lets another process publish the second before this one has the first.
    let events: Vec<(i64, Uuid, String, String)> = query_as(
        "select seq, event_id, routing_key, payload::text from outbox event
         where published_at is null and (attempts = 0 or available_at <= statement_timestamp())
           and not exists (select from outbox older where older.aggregate_id = event.aggregate_id
                           and older.aggregate_version < event.aggregate_version and older.published_at is null)
         order by seq limit 200 for update of event skip locked",
    )
    .fetch_all(&mut *transaction)
    .await?;
    if events.is_empty() {
        transaction.rollback().await?;
        return Ok(0);
    }
    // A row can be visible before a synchronous standby has it, and be lost with the primary. This commit waits for the standby.
    query("select pg_logical_emit_message(true, '', '') where current_setting('synchronous_standby_names') <> ''")
        .execute(barrier)
        .await?;
    let (refused, is_nacked) = publish(app, channel, &events).await?;
    let (refused, confirmed): (Vec<_>, Vec<_>) = events.iter().partition(|event| refused.contains(&event.1));
    let seqs =
        |events: Vec<&(i64, Uuid, String, String)>| events.iter().map(|event| event.0).collect::<Vec<_>>();
    let is_returned = !refused.is_empty();
    let mark =
        query("update outbox set published_at = clock_timestamp() where seq = any($1)").bind(seqs(confirmed));
    mark.execute(&mut *transaction).await?;
    let back_off = query(
        "update outbox set attempts = least(attempts + 1, 100),
             available_at = clock_timestamp() + (0.5 + random()) * least(60, 2 ^ attempts) * interval '1 second'
         where seq = any($1)",
    );
    back_off.bind(seqs(refused)).execute(&mut *transaction).await?;
    transaction.commit().await?;
    if is_nacked {
        bail!("a queue refuses messages"); // RabbitMQ 3.10 goes on refusing on this channel.
    }
    if is_returned {
        declare(app, channel).await?; // A binding may be missing.
    }
    Ok(events.len())
}

/// Returns which events the broker has refused, and whether by a nack. Without all answers nothing is known, and it fails.
/// No other task may publish on this channel: lapin would mix up the confirms.
async fn publish(
    app: &App,
    channel: &Channel,
    events: &[(i64, Uuid, String, String)],
) -> Result<(HashSet<Uuid>, bool)> {
    let (mut sent, mut refused, mut is_nacked) = (vec![], HashSet::new(), false);
    for (_, id, key, body) in events {
        if body.len() > MAX_BODY_BYTES || key.len() > 255 {
            refused.insert(*id);
            continue;
        }
        // Mandatory: what no queue wants is returned, and not confirmed and dropped. Delivery mode 2: on disk.
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let properties =
            BasicProperties::default().with_message_id(id.to_string().into()).with_delivery_mode(2);
        let publish = channel.basic_publish(
            app.exchange.as_str().into(),
            key.as_str().into(),
            options,
            body.as_bytes(),
            properties,
        );
        sent.push((id, publish.await?));
    }
    // Each confirm by itself: `wait_for_confirms` hides nacks. A return can ride on the confirm of another message, so it counts
    // by its message id, and only the whole batch decides.
    for (id, confirm) in sent {
        let confirmation = confirm.await?;
        match &confirmation {
            Confirmation::NotRequested => bail!("the channel does not confirm"),
            Confirmation::Nack(_) => is_nacked |= refused.insert(*id),
            Confirmation::Ack(_) => {}
        }
        if let Some(message) = confirmation.take_message() {
            let id =
                message.delivery.properties.message_id().as_ref().and_then(|id| id.as_str().parse().ok());
            refused.insert(id.context("a message without an id was returned")?);
        }
    }
    Ok((refused, is_nacked))
}

async fn consume(app: &App) -> Result<Infallible> {
    // First: without a database each delivery is in vain, and counts towards the delivery limit.
    let mut database = within("connect to PostgreSQL", app.database.connect()).await?;
    let (_connection, channel) = within("connect to RabbitMQ", connect(app, "inventory")).await?;
    within("set the prefetch", channel.basic_qos(PREFETCH, BasicQosOptions::default())).await?;
    let consumer =
        channel.basic_consume(QUEUE.into(), "".into(), BasicConsumeOptions::default(), FieldTable::default());
    let mut deliveries = within("consume", consumer).await?;
    while let Some(delivery) = deliveries.next().await {
        let delivery = delivery?;
        let applied = within("apply an event", apply(&mut database, &delivery)).await;
        if applied? {
            // After the commit: before it, a crash in between would lose the event. After a crash here it is a duplicate.
            within("acknowledge", delivery.ack(BasicAckOptions::default())).await?;
        } else {
            within("reject", delivery.reject(BasicRejectOptions { requeue: false })).await?;
        }
    }
    bail!("the broker has cancelled the consumer")
}

#[derive(Deserialize)]
struct OrderCreated {
    data: OrderData,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OrderData {
    order_id: Uuid,
    sku: String,
    quantity: i32,
}

/// Records the event and reserves the goods in one transaction; the record's primary key finds duplicates. False: it can never
/// be applied, and goes to the dead letters.
async fn apply(database: &mut PgConnection, delivery: &Delivery) -> Result<bool> {
    let id = delivery.properties.message_id().as_ref().and_then(|id| id.as_str().parse::<Uuid>().ok());
    let event = serde_json::from_slice::<OrderCreated>(&delivery.data).map(|event| event.data);
    let (Some(id), Ok(order)) = (id, event) else { return Ok(false) };
    let mut transaction = database.begin().await?;
    let first = query(
        "insert into processed_events (consumer, event_id) values ('inventory', $1) on conflict do nothing",
    );
    if first.bind(id).execute(&mut *transaction).await?.rows_affected() == 1 {
        let reserve = query("insert into reservations (order_id, sku, quantity) values ($1, $2, $3)");
        let reserve = reserve.bind(order.order_id).bind(order.sku).bind(order.quantity);
        if let Err(error) = reserve.execute(&mut *transaction).await {
            // Classes 22 and 23: a value that no attempt makes right. Tried again, it would block the queue.
            let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default();
            transaction.rollback().await?;
            return if code.starts_with("22") || code.starts_with("23") {
                Ok(false)
            } else {
                Err(error.into())
            };
        }
    }
    transaction.commit().await?;
    Ok(true)
}

/// Dropped, the connection is closed. No `enable_auto_recover`: confirms stay pending through an outage.
async fn connect(app: &App, name: &'static str) -> Result<(Connection, Channel)> {
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    let connection = Connection::connect_uri(app.amqp.clone(), properties).await?;
    let channel = connection.create_channel().await?;
    declare(app, &channel).await?;
    Ok((connection, channel))
}

/// Relay and consumer declare everything, so whichever is first finds it. No alternate exchange: it would take what no queue
/// wants, and the broker would confirm that.
async fn declare(app: &App, channel: &Channel) -> Result<()> {
    let exchange = || app.exchange.as_str().into();
    let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
    channel.exchange_declare(exchange(), ExchangeKind::Topic, options, FieldTable::default()).await?;
    // A quorum queue confirms what is on disk. Dead letters stay in it until they are in the other queue.
    let with = |mut table: FieldTable, key: &str, value: &str| {
        table.insert(key.into(), AMQPValue::LongString(value.into()));
        table
    };
    let plain = with(FieldTable::default(), "x-queue-type", "quorum");
    let arguments = with(plain.clone(), "x-dead-letter-exchange", "");
    let arguments = with(arguments, "x-dead-letter-routing-key", DEAD_LETTERS);
    let arguments = with(arguments, "x-dead-letter-strategy", "at-least-once");
    let mut arguments = with(arguments, "x-overflow", "reject-publish");
    // For a message that crashes its consumer. High, because a lost connection counts as a delivery of all that it held.
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(100));
    for (queue, arguments) in [(DEAD_LETTERS, plain), (QUEUE, arguments)] {
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare(queue.into(), options, arguments).await?;
    }
    let (options, arguments) = (QueueBindOptions::default(), FieldTable::default());
    Ok(channel.queue_bind(QUEUE.into(), exchange(), ORDER_CREATED.into(), options, arguments).await?)
}

impl App {
    fn from_environment() -> Result<Self> {
        let database = variable("DATABASE_URL", "postgres://postgres:postgres@localhost/postgres");
        let database = database.parse::<PgConnectOptions>().context("failed to parse DATABASE_URL")?;
        let database = database.options([
            ("search_path", "one_file"),
            ("statement_timeout", "10s"),
            ("idle_in_transaction_session_timeout", IDLE_LIMIT),
        ]);
        let amqp = variable("AMQP_URL", "amqp://guest:guest@localhost:5672/%2f").parse::<AMQPUri>();
        let mut amqp = amqp.map_err(anyhow::Error::msg).context("failed to parse AMQP_URL")?;
        // A dead broker is noticed after two missed ones. RabbitMQ's default is a minute.
        amqp.query.heartbeat = Some(5);
        let pool = PgPoolOptions::new().max_connections(10).acquire_timeout(Duration::from_secs(3));
        let pool = pool.connect_lazy_with(database.clone());
        let exchange = variable("EXCHANGE", "one-file.events");
        Ok(Self { database, pool, amqp, exchange, committed: Notify::new(), wake: Notify::new() })
    }
}

fn variable(name: &str, default: &str) -> String {
    env::var(name).unwrap_or_else(|_| default.into())
}

async fn within<T, E: Into<anyhow::Error>>(
    what: &str,
    wait: impl Future<Output = Result<T, E>>,
) -> Result<T> {
    let answer = timeout(DEADLINE, wait)
        .await
        .with_context(|| format!("failed to {what}: no answer in {DEADLINE:?}"))?;
    answer.map_err(|error| error.into().context(format!("failed to {what}")))
}

/// Begins again after each error with new connections: what an old one still does is unknown. The pause doubles up to 5 s.
async fn repeat(name: &str, work: impl AsyncFn() -> Result<Infallible>) {
    let mut pause = Duration::from_millis(100);
    loop {
        let began = Instant::now();
        let Err(error) = work().await;
        pause = if began.elapsed() > DEADLINE { Duration::from_millis(100) } else { pause * 2 };
        pause = pause.min(Duration::from_secs(5));
        warn!("{name}: {error:#}; next attempt in {pause:?}");
        sleep(pause).await;
    }
}
