//! The stock handler reserves all lines of an order or none, never more than there is, and releases them again.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot continue fails with a message")]

use database::{Pool, PoolKind};
use events::{Cause, Data, Event, Line, Money, NewEvent, OrderCancelled, OrderCreated, TraceContext};
use inventory::StockHandler;
use messaging::{Handler, Wake};
use testbed::TestDatabase;
use uuid::Uuid;

struct Inventory {
    handler: StockHandler,
    pool: Pool,
    _database: TestDatabase,
}

impl Inventory {
    /// Starts with this many pieces of POT-003, and a million of every other product.
    async fn start(pieces: i64) -> anyhow::Result<Self> {
        let database = testbed::database().await?;
        testbed::migrate(database.urls()).await?;
        let url = database.url("inventory").parse().map_err(anyhow::Error::msg)?;
        let pool = Pool::new(&url, "test", 10, PoolKind::Transactions);
        sqlx::query("update stock set on_hand = $1 where sku = 'POT-003'")
            .bind(pieces)
            .execute(&pool)
            .await?;
        Ok(Self { handler: StockHandler::new(pool.clone(), Wake::new()), pool, _database: database })
    }

    async fn reserved(&self, sku: &str) -> anyhow::Result<i64> {
        let query = sqlx::query_scalar("select reserved from stock where sku = $1");
        Ok(query.bind(sku).fetch_one(&self.pool).await?)
    }

    /// The types of all events about an order, in order.
    async fn answers(&self, order: Uuid) -> anyhow::Result<Vec<String>> {
        let query = sqlx::query_scalar(
            "select event_type from outbox where payload -> 'data' ->> 'orderId' = $1::text order by seq",
        );
        Ok(query.bind(order).fetch_all(&self.pool).await?)
    }
}

/// The event as its consumer receives it.
fn event(aggregate: Uuid, version: i32, data: &impl Data) -> Event {
    let event = NewEvent::of(aggregate, version, &TraceContext::root(), data).unwrap();
    events::decode(event.payload.as_bytes(), Some(&event.event_id.to_string()), None).unwrap()
}

fn created(order_id: Uuid, lines: &[(&str, i32)]) -> Event {
    let lines: Vec<_> = lines
        .iter()
        .map(|(sku, quantity)| Line { sku: (*sku).into(), quantity: *quantity, unit_price: 1 })
        .collect();
    let total = Money { amount: OrderCreated::sum(&lines).unwrap(), currency: "EUR".into() };
    let body = OrderCreated { order_id, customer_id: order_id, lines, total };
    event(order_id, 1, &body)
}

fn cancelled(order_id: Uuid) -> Event {
    let body = OrderCancelled { order_id, cause: Cause::Customer, detail: String::new() };
    event(order_id, 2, &body)
}

#[tokio::test]
async fn orders_are_served_in_order_and_never_in_part() -> anyhow::Result<()> {
    let inventory = Inventory::start(10).await?;
    let orders = [Uuid::now_v7(), Uuid::now_v7(), Uuid::now_v7(), Uuid::now_v7()];
    // In one group: 6 of 10; then 5, too many, so its tea is not reserved either; then the last 4; then one too many.
    let group = [
        created(orders[0], &[("POT-003", 6)]),
        created(orders[1], &[("TEA-001", 3), ("POT-003", 5)]),
        created(orders[2], &[("POT-003", 4)]),
        created(orders[3], &[("POT-003", 1)]),
    ];
    inventory.handler.apply(&group).await?;
    assert_eq!((inventory.reserved("POT-003").await?, inventory.reserved("TEA-001").await?), (10, 0));
    let mut answers = vec![];
    for order in orders {
        answers.push(inventory.answers(order).await?.concat());
    }
    assert_eq!(answers, ["StockReserved", "StockRejected", "StockReserved", "StockRejected"]);
    let rejection: serde_json::Value = sqlx::query_scalar(
        "select payload -> 'data' from outbox where event_type = 'StockRejected' order by seq limit 1",
    )
    .fetch_one(&inventory.pool)
    .await?;
    assert_eq!(
        (&rejection["sku"], &rejection["wanted"], &rejection["available"]),
        (&"POT-003".into(), &5.into(), &4.into())
    );

    // Released stock can be reserved again.
    inventory.handler.apply(&[cancelled(orders[0])]).await?;
    let next = Uuid::now_v7();
    inventory.handler.apply(&[created(next, &[("POT-003", 6)])]).await?;
    assert_eq!(inventory.answers(orders[0]).await?, ["StockReserved", "StockReleased"]);
    assert_eq!(inventory.answers(next).await?, ["StockReserved"]);
    assert_eq!(inventory.reserved("POT-003").await?, 10);
    Ok(())
}

/// Other services have applied the first answers, and know them by their ids.
#[tokio::test]
async fn restored_service_answers_repeated_events_with_the_same_ids() -> anyhow::Result<()> {
    let inventory = Inventory::start(10).await?;
    let (kept, gone) = (Uuid::now_v7(), Uuid::now_v7());
    let group = [created(kept, &[("TEA-001", 1)]), created(gone, &[("POT-003", 1)]), cancelled(gone)];
    let answer = async || -> anyhow::Result<Vec<(Uuid, Uuid, String)>> {
        for event in &group {
            inventory.handler.apply(std::slice::from_ref(event)).await?;
        }
        let answers = "select event_id, aggregate_id, event_type from outbox order by seq";
        Ok(sqlx::query_as(answers).fetch_all(&inventory.pool).await?)
    };
    let first = answer().await?;
    sqlx::raw_sql(
        "truncate outbox, processed_events, reservations, reservation_lines, cancelled_orders; update stock set reserved = 0",
    )
    .execute(&inventory.pool)
    .await?;
    assert_eq!(answer().await?, first);
    assert_eq!(first.len(), 3);
    Ok(())
}

#[tokio::test]
async fn lines_of_one_product_are_added_up_and_an_unknown_product_is_rejected() -> anyhow::Result<()> {
    let inventory = Inventory::start(10).await?;
    let (twice, unknown) = (Uuid::now_v7(), Uuid::now_v7());
    inventory.handler.apply(&[created(twice, &[("POT-003", 6), ("POT-003", 6)])]).await?;
    inventory.handler.apply(&[created(unknown, &[("TEA-001", 1), ("UNICORN", 1)])]).await?;
    for order in [twice, unknown] {
        assert_eq!(inventory.answers(order).await?, ["StockRejected"]);
    }
    assert_eq!((inventory.reserved("POT-003").await?, inventory.reserved("TEA-001").await?), (0, 0));
    Ok(())
}

/// A product that is unknown has no row in which a statement could bring the cancellation along.
#[tokio::test]
async fn order_that_arrives_after_its_cancellation_reserves_nothing() -> anyhow::Result<()> {
    let inventory = Inventory::start(10).await?;
    for sku in ["POT-003", "UNICORN"] {
        let order = Uuid::now_v7();
        inventory.handler.apply(&[cancelled(order)]).await?;
        inventory.handler.apply(&[created(order, &[(sku, 1)])]).await?;
        assert_eq!(inventory.answers(order).await?.len(), 0, "{sku}");
    }
    assert_eq!(inventory.reserved("POT-003").await?, 0);
    Ok(())
}

#[tokio::test]
async fn duplicates_and_a_second_cancellation_change_nothing() -> anyhow::Result<()> {
    let inventory = Inventory::start(10).await?;
    let order = Uuid::now_v7();
    let (creation, cancellation) = (created(order, &[("POT-003", 2)]), cancelled(order));
    inventory.handler.apply(&[creation.clone(), creation.clone(), cancellation.clone()]).await?;
    inventory.handler.apply(&[creation, cancellation, cancelled(order)]).await?;
    assert_eq!(inventory.answers(order).await?, ["StockReserved", "StockReleased"]);
    assert_eq!(inventory.reserved("POT-003").await?, 0);
    Ok(())
}

/// Its reservation's id is derived from the event. As a fault of the database it would stop all messages behind it.
#[tokio::test]
async fn event_whose_record_was_erased_is_refused_and_changes_nothing() -> anyhow::Result<()> {
    let inventory = Inventory::start(10).await?;
    let order = Uuid::now_v7();
    let creation = [created(order, &[("POT-003", 2)])];
    inventory.handler.apply(&creation).await?;
    sqlx::query("delete from processed_events").execute(&inventory.pool).await?;
    let failure = inventory.handler.apply(&creation).await.unwrap_err();
    assert!(matches!(failure, messaging::Failure::Permanent(_)), "{failure}");
    assert_eq!(inventory.reserved("POT-003").await?, 2);
    assert_eq!(inventory.answers(order).await?, ["StockReserved"]);
    Ok(())
}

/// Each of two concurrent groups orders all there is: one of them gets it.
#[tokio::test]
async fn two_concurrent_groups_never_reserve_more_than_there_is() -> anyhow::Result<()> {
    let inventory = Inventory::start(10).await?;
    for _ in 0..10 {
        let orders = [Uuid::now_v7(), Uuid::now_v7()];
        let groups = orders.map(|order| [created(order, &[("POT-003", 10)])]);
        let (one, other) =
            tokio::join!(inventory.handler.apply(&groups[0]), inventory.handler.apply(&groups[1]));
        one.unwrap();
        other.unwrap();
        assert_eq!(inventory.reserved("POT-003").await?, 10);
        inventory.handler.apply(&orders.map(cancelled)).await?;
        assert_eq!(inventory.reserved("POT-003").await?, 0);
    }
    Ok(())
}

/// Each reserves the product that the other one gives back.
#[tokio::test]
async fn two_concurrent_groups_that_reserve_and_release_do_not_deadlock() -> anyhow::Result<()> {
    const PRODUCTS: [&str; 2] = ["MUG-001", "TEA-001"];
    let inventory = Inventory::start(10).await?;
    let order_in = |lane| std::iter::repeat_with(Uuid::now_v7).find(|id| events::lane(*id) == lane).unwrap();
    for _ in 0..20 {
        let held = [order_in(0), order_in(1)];
        for (order, sku) in held.into_iter().zip(PRODUCTS) {
            inventory.handler.apply(&[created(order, &[(sku, 1)])]).await?;
        }
        let crosswise = held.into_iter().zip(PRODUCTS.into_iter().rev()).zip([0, 1]);
        let groups: Vec<_> = crosswise
            .map(|((off, sku), lane)| [created(order_in(lane), &[(sku, 1)]), cancelled(off)])
            .collect();
        let (one, other) =
            tokio::join!(inventory.handler.apply(&groups[0]), inventory.handler.apply(&groups[1]));
        one?;
        other?;
    }
    Ok(())
}

/// As after a restore, or a switch to a logical replica: the sequence of the service's own outbox is behind its table.
#[tokio::test]
async fn own_sequence_behind_its_table_is_no_message_s_fault() -> anyhow::Result<()> {
    let inventory = Inventory::start(1_000).await?;
    let one = created(Uuid::now_v7(), &[("TEA-001", 1)]);
    inventory.handler.apply(&[one]).await?;
    sqlx::query("alter table outbox alter column seq restart with 1").execute(&inventory.pool).await?;
    let two = created(Uuid::now_v7(), &[("TEA-001", 1)]);
    let failure = inventory.handler.apply(std::slice::from_ref(&two)).await.unwrap_err();
    assert!(matches!(failure, messaging::Failure::Temporary(_)), "{failure}");
    sqlx::query("alter table outbox alter column seq restart with 1000").execute(&inventory.pool).await?;
    inventory.handler.apply(&[two]).await?;
    Ok(())
}
