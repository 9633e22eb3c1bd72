use std::time::Duration;

use database::{Pool, PoolKind};
use events::{Event, Line, Money, NewEvent, OrderCreated, TraceContext};
use inbox::{DeadLetterTable, Error, Inbox};
use messaging::{DeadLetter, replay::ReplayPolicy};
use serde_json::{Value, json};
use sqlx::PgConnection;
use testbed::{TestDatabase, eventually};
use uuid::Uuid;

/// How long a test waits for any condition.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) const BILLING: Inbox = Inbox { consumer: "billing", queue: "billing.events", keeps_order: true };

/// The policy of a service that replays events of the last two weeks.
pub(crate) const TWO_WEEKS: ReplayPolicy =
    ReplayPolicy { max_age: Duration::from_secs(14 * 86_400), force: false };

/// The tables of an inbox in their own database.
pub(crate) struct TestInbox {
    pub(crate) pool: Pool,
    pub(crate) table: DeadLetterTable,
    _database: TestDatabase,
}

impl TestInbox {
    pub(crate) async fn new() -> anyhow::Result<Self> {
        Self::on(testbed::database().await?).await
    }

    /// With a table `effects`, which has one row for each time that an event was applied.
    pub(crate) async fn with_effects() -> anyhow::Result<Self> {
        let inbox = Self::new().await?;
        sqlx::query("create table effects (event_id uuid not null)").execute(&inbox.pool).await?;
        Ok(inbox)
    }

    pub(crate) async fn on(database: TestDatabase) -> anyhow::Result<Self> {
        let url = database.url("billing").parse().map_err(anyhow::Error::msg)?;
        let pool = Pool::new(&url, "test", 10, PoolKind::Transactions);
        inbox::MIGRATIONS.run(&mut *pool.acquire().await?).await?;
        Ok(Self { table: DeadLetterTable::new(pool.clone(), BILLING), pool, _database: database })
    }
}

/// Applies events: writes a row of `effects` for each.
pub(crate) async fn write_effects(transaction: &mut PgConnection, new: &[&Event]) -> Result<(), Error> {
    for event in new {
        sqlx::query("insert into effects values ($1)").bind(event.id).execute(&mut *transaction).await?;
    }
    Ok(())
}

/// Waits until this many transactions wait for the lock of their consumer.
pub(crate) async fn waits_for_the_lock(pool: &Pool, transactions: i64) -> anyhow::Result<()> {
    let waiting = "select count(*) from pg_locks join pg_database on pg_database.oid = pg_locks.database
                   where locktype = 'advisory' and not granted and datname = current_database()";
    eventually("transactions to wait for the lock", DEADLINE, async || {
        let waiting: i64 = sqlx::query_scalar(waiting).fetch_one(pool).await?;
        Ok((waiting == transactions).then_some(()))
    })
    .await
}

/// Records one event as processed. Returns whether it was new.
pub(crate) async fn record(pool: &Pool, event: &Event) -> anyhow::Result<bool> {
    let (transaction, new) = BILLING.first_time(pool, std::slice::from_ref(event)).await?;
    transaction.commit().await?;
    Ok(!new.is_empty())
}

pub(crate) fn event() -> Event {
    event_of(Uuid::now_v7())
}

/// An event of this order.
pub(crate) fn event_of(order_id: Uuid) -> Event {
    let envelope = envelope(order_id);
    events::decode(envelope.to_string().as_bytes(), envelope["id"].as_str(), None).unwrap()
}

/// An event of an order in this lane.
pub(crate) fn event_in(lane: i16) -> Event {
    let mut orders = std::iter::repeat_with(Uuid::now_v7);
    event_of(orders.find(|order| events::lane(*order) == lane).unwrap())
}

/// The envelope of an event that a handler can apply.
pub(crate) fn envelope(order_id: Uuid) -> Value {
    let order = OrderCreated {
        order_id,
        customer_id: Uuid::new_v4(),
        lines: vec![Line { sku: "TEA-001".into(), quantity: 1, unit_price: 625 }],
        total: Money { amount: 625, currency: "EUR".into() },
    };
    let event = NewEvent::of(order_id, 1, &TraceContext::root(), &order).unwrap();
    let mut envelope: Value = serde_json::from_str(&event.payload).unwrap();
    // Events of one order and one version are different events here.
    envelope["id"] = json!(Uuid::now_v7());
    envelope
}

/// A dead letter that its consumer has set aside.
pub(crate) fn letter(event: &Event, reason: &str) -> DeadLetter {
    let mut body = envelope(event.aggregate_id);
    body["id"] = json!(event.id);
    DeadLetter {
        queue: BILLING.queue,
        arrival: None,
        message_id: Some(event.id.to_string()),
        reason: reason.into(),
        detail: reason.into(),
        headers: json!({ "reason": reason }),
        routing_key: "order.created".into(),
        body: body.to_string().into_bytes(),
    }
}
