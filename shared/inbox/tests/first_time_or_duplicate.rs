//! The primary key decides, in the transaction of the effect.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use std::time::Duration;

use events::{Body, Data, Event, Line, Money, OrderCreated, TraceContext};
use inbox::{applied, first_time};
use sqlx::PgPool;
use testbed::TestDatabase;
use time::OffsetDateTime;
use uuid::Uuid;

async fn inbox() -> anyhow::Result<(PgPool, TestDatabase)> {
    let database = testbed::database().await?;
    let pool = PgPool::connect(&database.url("billing")).await?;
    inbox::MIGRATIONS.run(&pool).await?;
    // The effect: one row for each time that an event was applied.
    sqlx::query("create table effects (event_id uuid not null)").execute(&pool).await?;
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

/// What a handler does, with a pause before the commit in which a race can be lost.
async fn handle(pool: &PgPool, consumer: &str, group: &[Event]) -> anyhow::Result<usize> {
    let mut transaction = pool.begin().await?;
    let first = first_time(&mut transaction, consumer, group).await?;
    for event in &first {
        sqlx::query("insert into effects values ($1)").bind(event.id).execute(&mut *transaction).await?;
    }
    sqlx::query("select pg_sleep(0.05)").execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(applied(group, &first).first)
}

async fn effects(pool: &PgPool, event: &Event) -> anyhow::Result<i64> {
    let sql = "select count(*) from effects where event_id = $1";
    Ok(sqlx::query_scalar(sql).bind(event.id).fetch_one(pool).await?)
}

#[tokio::test]
async fn the_same_event_delivered_twice_has_one_effect() -> anyhow::Result<()> {
    let (pool, _database) = inbox().await?;
    let event = event();
    assert_eq!(handle(&pool, "billing", std::slice::from_ref(&event)).await?, 1);
    assert_eq!(handle(&pool, "billing", std::slice::from_ref(&event)).await?, 0);
    assert_eq!(effects(&pool, &event).await?, 1);
    Ok(())
}

#[tokio::test]
async fn the_same_event_delivered_to_ten_connections_at_the_same_time_has_one_effect() -> anyhow::Result<()> {
    let (pool, _database) = inbox().await?;
    for _ in 0..5 {
        let event = event();
        let tries = (0..10).map(|_| {
            let (pool, event) = (pool.clone(), event.clone());
            tokio::spawn(async move { handle(&pool, "billing", &[event]).await })
        });
        let mut first = 0;
        for tried in tries.collect::<Vec<_>>() {
            first += tried.await??;
        }
        assert_eq!(first, 1);
        assert_eq!(effects(&pool, &event).await?, 1);
    }
    Ok(())
}

#[tokio::test]
async fn a_group_that_holds_an_event_twice_applies_it_once_and_in_order() -> anyhow::Result<()> {
    let (pool, _database) = inbox().await?;
    let (a, b) = (event(), event());
    let group = [b.clone(), a.clone(), b.clone()];
    let mut transaction = pool.begin().await?;
    let first = first_time(&mut transaction, "billing", &group).await?;
    assert_eq!(first.iter().map(|event| event.id).collect::<Vec<_>>(), [b.id, a.id]);
    transaction.commit().await?;
    assert_eq!(applied(&group, &first).duplicates, 1);
    Ok(())
}

#[tokio::test]
async fn an_effect_that_was_rolled_back_is_not_remembered() -> anyhow::Result<()> {
    let (pool, _database) = inbox().await?;
    let event = event();
    let mut transaction = pool.begin().await?;
    assert_eq!(first_time(&mut transaction, "billing", std::slice::from_ref(&event)).await?.len(), 1);
    transaction.rollback().await?;
    assert_eq!(handle(&pool, "billing", std::slice::from_ref(&event)).await?, 1, "it would be lost");
    Ok(())
}

#[tokio::test]
async fn two_consumers_each_apply_an_event_once() -> anyhow::Result<()> {
    let (pool, _database) = inbox().await?;
    let event = event();
    assert_eq!(handle(&pool, "billing", std::slice::from_ref(&event)).await?, 1);
    assert_eq!(handle(&pool, "reporting", std::slice::from_ref(&event)).await?, 1);
    Ok(())
}

#[tokio::test]
async fn groups_that_overlap_in_opposite_orders_do_not_block_each_other_for_ever() -> anyhow::Result<()> {
    let (pool, _database) = inbox().await?;
    let events: Vec<_> = (0..50).map(|_| event()).collect();
    let backwards: Vec<_> = events.iter().rev().cloned().collect();
    let both =
        async { tokio::join!(handle(&pool, "billing", &events), handle(&pool, "billing", &backwards)) };
    let (one, other) = tokio::time::timeout(Duration::from_secs(30), both).await?;
    assert_eq!(one? + other?, 50);
    Ok(())
}

#[tokio::test]
async fn two_transactions_of_one_consumer_never_overlap_whatever_they_apply() -> anyhow::Result<()> {
    let (pool, _database) = inbox().await?;
    let mut replay = pool.begin().await?;
    first_time(&mut replay, "billing", &[event()]).await?;
    // Another consumer in the same schema has nothing to do with it.
    assert_eq!(handle(&pool, "archive", &[event()]).await?, 1);

    let consumer = tokio::spawn({
        let pool = pool.clone();
        async move { handle(&pool, "billing", &[event()]).await }
    });
    let waiting = "select count(*) from pg_locks join pg_database on pg_database.oid = pg_locks.database
                   where locktype = 'advisory' and not granted and datname = current_database()";
    testbed::eventually("the consumer to wait", Duration::from_secs(20), async || {
        let waiting: i64 = sqlx::query_scalar(waiting).fetch_one(&pool).await?;
        Ok((waiting == 1).then_some(()))
    })
    .await?;
    assert!(!consumer.is_finished());
    replay.commit().await?;
    assert_eq!(consumer.await??, 1);
    Ok(())
}
