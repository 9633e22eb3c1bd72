use std::time::Duration;

use database::{Pool, PoolKind};
use events::{Body, Data, Event, Line, Money, OrderCreated, TraceContext};
use inbox::Inbox;
use testbed::{TestDatabase, eventually};
use time::OffsetDateTime;
use uuid::Uuid;

/// How long a test waits for any condition.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) const BILLING: Inbox = Inbox { consumer: "billing", queue: "billing.events", keeps_order: true };

/// The tables of an inbox in a database of their own.
pub(crate) struct TestInbox {
    pub(crate) pool: Pool,
    _database: TestDatabase,
}

impl TestInbox {
    pub(crate) async fn new() -> anyhow::Result<Self> {
        let database = testbed::database().await?;
        let pool = Pool::new(
            &database.url("billing").parse().map_err(anyhow::Error::msg)?,
            "test",
            10,
            PoolKind::Transactions,
        );
        inbox::MIGRATIONS.run(&mut *pool.acquire().await?).await?;
        Ok(Self { pool, _database: database })
    }
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

pub(crate) fn event() -> Event {
    event_of(Uuid::now_v7())
}

/// An event of this order.
pub(crate) fn event_of(order_id: Uuid) -> Event {
    Event {
        id: Uuid::now_v7(),
        event_type: OrderCreated::TYPE,
        source: OrderCreated::SOURCE,
        aggregate_id: order_id,
        aggregate_version: 1,
        time: OffsetDateTime::now_utc(),
        trace: TraceContext::root(),
        received: std::time::SystemTime::now(),
        body: Body::OrderCreated(OrderCreated {
            order_id,
            customer_id: Uuid::new_v4(),
            lines: vec![Line { sku: "TEA-001".into(), quantity: 1, unit_price: 625 }],
            total: Money { amount: 625, currency: "EUR".into() },
        }),
    }
}
