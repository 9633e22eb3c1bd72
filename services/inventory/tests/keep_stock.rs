//! All of an order or nothing of it, never more than there is, and back again.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use events::{
    Body, Cause, Data, Event, Line, Money, OrderCancelled, OrderCreated, TraceContext, transport::Handler,
};
use inventory::KeepStock;
use outbox::Wake;
use sqlx::PgPool;
use testbed::TestDatabase;
use time::OffsetDateTime;
use uuid::Uuid;

struct Warehouse {
    handler: KeepStock,
    pool: PgPool,
    _database: TestDatabase,
}

/// With so many pieces of POT-003, and plenty of everything else.
async fn warehouse(pieces: i64) -> anyhow::Result<Warehouse> {
    let database = testbed::database().await?;
    testbed::migrate(database.urls()).await?;
    let pool = PgPool::connect(&database.url("inventory")).await?;
    sqlx::query("update stock set on_hand = $1 where sku = 'POT-003'").bind(pieces).execute(&pool).await?;
    Ok(Warehouse { handler: KeepStock::new(pool.clone(), Wake::new()), pool, _database: database })
}

impl Warehouse {
    async fn reserved(&self, sku: &str) -> anyhow::Result<i64> {
        let query = sqlx::query_scalar("select reserved from stock where sku = $1");
        Ok(query.bind(sku).fetch_one(&self.pool).await?)
    }

    /// The types of all that was answered about an order, in order.
    async fn answers(&self, order: Uuid) -> anyhow::Result<Vec<String>> {
        let query = sqlx::query_scalar(
            "select event_type from outbox where payload -> 'data' ->> 'orderId' = $1::text order by seq",
        );
        Ok(query.bind(order).fetch_all(&self.pool).await?)
    }
}

fn event(order_id: Uuid, event_type: &'static str, version: i32, body: Body) -> Event {
    Event {
        id: Uuid::now_v7(),
        event_type,
        aggregate_id: order_id,
        aggregate_version: version,
        time: OffsetDateTime::now_utc(),
        trace: TraceContext::root(),
        body,
    }
}

fn created(order_id: Uuid, lines: &[(&str, i32)]) -> Event {
    let lines: Vec<_> = lines
        .iter()
        .map(|(sku, quantity)| Line { sku: (*sku).into(), quantity: *quantity, unit_price: 1 })
        .collect();
    let total = Money { amount: OrderCreated::sum(&lines).unwrap(), currency: "EUR".into() };
    let body = OrderCreated { order_id, customer_id: order_id, lines, total };
    event(order_id, OrderCreated::TYPE, 1, Body::OrderCreated(body))
}

fn cancelled(order_id: Uuid) -> Event {
    let body = OrderCancelled { order_id, cause: Cause::Customer, detail: String::new() };
    event(order_id, OrderCancelled::TYPE, 2, Body::OrderCancelled(body))
}

#[tokio::test]
async fn whoever_comes_first_gets_it_and_nobody_gets_half_an_order() -> anyhow::Result<()> {
    let warehouse = warehouse(10).await?;
    let orders = [Uuid::now_v7(), Uuid::now_v7(), Uuid::now_v7(), Uuid::now_v7()];
    // In one group: 6 of 10; then 5, too many, with tea that is not taken either; then the last 4; then one too many.
    let group = [
        created(orders[0], &[("POT-003", 6)]),
        created(orders[1], &[("TEA-001", 3), ("POT-003", 5)]),
        created(orders[2], &[("POT-003", 4)]),
        created(orders[3], &[("POT-003", 1)]),
    ];
    warehouse.handler.apply(&group).await?;
    assert_eq!((warehouse.reserved("POT-003").await?, warehouse.reserved("TEA-001").await?), (10, 0));
    let mut answers = vec![];
    for order in orders {
        answers.push(warehouse.answers(order).await?.concat());
    }
    assert_eq!(answers, ["StockReserved", "StockRejected", "StockReserved", "StockRejected"]);
    let why: serde_json::Value = sqlx::query_scalar(
        "select payload -> 'data' from outbox where event_type = 'StockRejected' order by seq limit 1",
    )
    .fetch_one(&warehouse.pool)
    .await?;
    assert_eq!((&why["sku"], &why["wanted"], &why["available"]), (&"POT-003".into(), &5.into(), &4.into()));

    // What is put back can be had again.
    warehouse.handler.apply(&[cancelled(orders[0])]).await?;
    let next = Uuid::now_v7();
    warehouse.handler.apply(&[created(next, &[("POT-003", 6)])]).await?;
    assert_eq!(warehouse.answers(orders[0]).await?, ["StockReserved", "StockReleased"]);
    assert_eq!(warehouse.answers(next).await?, ["StockReserved"]);
    assert_eq!(warehouse.reserved("POT-003").await?, 10);
    Ok(())
}

#[tokio::test]
async fn a_product_that_is_in_two_lines_or_in_no_warehouse_is_counted_as_what_it_is() -> anyhow::Result<()> {
    let warehouse = warehouse(10).await?;
    let (twice, unknown) = (Uuid::now_v7(), Uuid::now_v7());
    warehouse.handler.apply(&[created(twice, &[("POT-003", 6), ("POT-003", 6)])]).await?;
    warehouse.handler.apply(&[created(unknown, &[("TEA-001", 1), ("UNICORN", 1)])]).await?;
    for order in [twice, unknown] {
        assert_eq!(warehouse.answers(order).await?, ["StockRejected"]);
    }
    assert_eq!((warehouse.reserved("POT-003").await?, warehouse.reserved("TEA-001").await?), (0, 0));
    Ok(())
}

#[tokio::test]
async fn a_cancellation_that_comes_first_leaves_a_note_and_the_late_order_reserves_nothing()
-> anyhow::Result<()> {
    let warehouse = warehouse(10).await?;
    let order = Uuid::now_v7();
    warehouse.handler.apply(&[cancelled(order)]).await?;
    warehouse.handler.apply(&[created(order, &[("POT-003", 1)])]).await?;
    assert_eq!((warehouse.answers(order).await?.len(), warehouse.reserved("POT-003").await?), (0, 0));
    Ok(())
}

#[tokio::test]
async fn events_that_come_twice_and_a_second_cancellation_change_nothing() -> anyhow::Result<()> {
    let warehouse = warehouse(10).await?;
    let order = Uuid::now_v7();
    let (creation, cancellation) = (created(order, &[("POT-003", 2)]), cancelled(order));
    warehouse.handler.apply(&[creation.clone(), creation.clone(), cancellation.clone()]).await?;
    warehouse.handler.apply(&[creation, cancellation, cancelled(order)]).await?;
    assert_eq!(warehouse.answers(order).await?, ["StockReserved", "StockReleased"]);
    assert_eq!(warehouse.reserved("POT-003").await?, 0);
    Ok(())
}

/// Two groups at once, each of which wants all there is: one of them gets it.
#[tokio::test]
async fn two_at_once_never_take_more_than_there_is() -> anyhow::Result<()> {
    let warehouse = warehouse(10).await?;
    for _ in 0..10 {
        let orders = [Uuid::now_v7(), Uuid::now_v7()];
        let groups = orders.map(|order| [created(order, &[("POT-003", 10)])]);
        let (one, other) =
            tokio::join!(warehouse.handler.apply(&groups[0]), warehouse.handler.apply(&groups[1]));
        one.unwrap();
        other.unwrap();
        assert_eq!(warehouse.reserved("POT-003").await?, 10);
        warehouse.handler.apply(&orders.map(cancelled)).await?;
        assert_eq!(warehouse.reserved("POT-003").await?, 0);
    }
    Ok(())
}
