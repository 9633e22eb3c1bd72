use std::time::Duration;

use events::{Body, Data, Event, Line, Money, OrderCreated, TraceContext};
use sqlx::PgPool;
use testbed::TestDatabase;
use time::OffsetDateTime;
use uuid::Uuid;

/// How long a test waits for any condition.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// An inbox in a database of its own.
pub(crate) struct Inbox {
    pub(crate) pool: PgPool,
    _database: TestDatabase,
}

impl Inbox {
    pub(crate) async fn new() -> anyhow::Result<Self> {
        let database = testbed::database().await?;
        let pool = PgPool::connect(&database.url("billing")).await?;
        inbox::MIGRATIONS.run(&pool).await?;
        Ok(Self { pool, _database: database })
    }
}

pub(crate) fn event() -> Event {
    let order_id = Uuid::now_v7();
    Event {
        id: Uuid::now_v7(),
        event_type: OrderCreated::TYPE,
        aggregate_id: order_id,
        aggregate_version: 1,
        time: OffsetDateTime::now_utc(),
        trace: TraceContext::root(),
        body: Body::OrderCreated(OrderCreated {
            order_id,
            customer_id: Uuid::new_v4(),
            lines: vec![Line { sku: "TEA-001".into(), quantity: 1, unit_price: 625 }],
            total: Money { amount: 625, currency: "EUR".into() },
        }),
    }
}
