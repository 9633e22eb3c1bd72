//! How long an event is remembered, and what it means to forget one. Ages are written, not waited for.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use std::time::Duration;

use events::{Body, Data, Event, Line, Money, OrderCreated, TraceContext};
use inbox::{Retention, Round, first_time};
use sqlx::PgPool;
use testbed::TestDatabase;
use time::OffsetDateTime;
use uuid::Uuid;

const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);

async fn inbox() -> anyhow::Result<(PgPool, TestDatabase)> {
    let database = testbed::database().await?;
    let pool = PgPool::connect(&database.url("billing")).await?;
    inbox::MIGRATIONS.run(&pool).await?;
    Ok((pool, database))
}

fn event() -> Event {
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

/// Whether the event is new to this consumer.
async fn is_new(pool: &PgPool, event: &Event) -> anyhow::Result<bool> {
    let mut transaction = pool.begin().await?;
    let group = std::slice::from_ref(event);
    let new = !first_time(&mut transaction, "billing", group).await?.is_empty();
    transaction.commit().await?;
    Ok(new)
}

/// Writes so many records whose ids and times are that old.
async fn history(pool: &PgPool, consumer: &str, records: i64, age: &str) -> anyhow::Result<()> {
    let sql = "insert into processed_events (consumer, event_id, event_type, processed_at)
               select $1, (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0')
                           || '7' || substr(md5(random()::text), 1, 3) || '8' || substr(md5(random()::text), 1, 15))::uuid,
                      'OrderCreated', at
               from (select clock_timestamp() - $3::text::interval as at from generate_series(1, $2)) as records";
    sqlx::query(sql).bind(consumer).bind(records).bind(age).execute(pool).await?;
    Ok(())
}

#[tokio::test]
async fn a_copy_is_dropped_while_the_event_is_remembered_and_applied_again_afterwards() -> anyhow::Result<()>
{
    let (pool, _database) = inbox().await?;
    let event = event();
    let mut retention = Retention::new(pool.clone(), "billing", MONTH);
    assert!(is_new(&pool, &event).await?);
    for (age, new) in [("29 days 23 hours", false), ("30 days 1 minute", true)] {
        let older = "update processed_events set processed_at = clock_timestamp() - $1::text::interval";
        sqlx::query(older).bind(age).execute(&pool).await?;
        assert_eq!(retention.round().await?.forgotten, u64::from(new), "{age}");
        // The second answer is why the memory has to be longer than anything can be published again.
        assert_eq!(is_new(&pool, &event).await?, new, "{age}");
    }
    Ok(())
}

#[tokio::test]
async fn a_round_takes_small_bites_stops_at_what_is_young_and_leaves_other_consumers_alone()
-> anyhow::Result<()> {
    let (pool, _database) = inbox().await?;
    history(&pool, "another", 100, "60 days").await?;
    history(&pool, "billing", 2500, "31 days").await?;
    history(&pool, "billing", 10_000, "1 day").await?;
    let mut retention = Retention::new(pool.clone(), "billing", MONTH);
    assert_eq!(retention.round().await?, Round { forgotten: 2500, windows: 4 });
    assert_eq!(retention.round().await?, Round { forgotten: 0, windows: 1 });
    let left: i64 = sqlx::query_scalar("select count(*) from processed_events").fetch_one(&pool).await?;
    assert_eq!(left, 10_100);
    Ok(())
}

#[tokio::test]
async fn two_instances_at_once_take_turns() -> anyhow::Result<()> {
    let (pool, _database) = inbox().await?;
    history(&pool, "billing", 5000, "31 days").await?;
    let new = || Retention::new(pool.clone(), "billing", MONTH);
    let (mut one, mut other) = (new(), new());
    let (first, second) = tokio::try_join!(one.round(), other.round())?;
    let later = one.round().await?;
    assert_eq!(first.forgotten + second.forgotten + later.forgotten, 5000);
    let written: i64 = sqlx::query_scalar("select forgotten from inbox_retention").fetch_one(&pool).await?;
    assert_eq!(written, 5000);
    Ok(())
}
