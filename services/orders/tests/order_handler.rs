//! The order handler applies the answers of inventory and billing: in any order, twice, late, and contradicting earlier
//! ones.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot continue fails with a message")]

use database::{Pool, PoolKind};
use events::{
    Data, Event, Money, NewEvent, PaymentCaptured, PaymentDeclined, PaymentRefunded, StockRejected,
    StockReleased, StockReserved, TraceContext,
};
use messaging::{Applied, Failure, Handler, Wake};
use orders::{
    OrderHandler,
    order_state::{OrderState, Trigger},
};
use testbed::TestDatabase;
use uuid::Uuid;

struct Orders {
    handler: OrderHandler,
    pool: Pool,
    _database: TestDatabase,
}

impl Orders {
    async fn start() -> anyhow::Result<Self> {
        let database = testbed::database().await?;
        testbed::migrate(database.urls()).await?;
        let url = database.url("orders").parse().map_err(anyhow::Error::msg)?;
        let pool = Pool::new(&url, "test", 10, PoolKind::Transactions);
        Ok(Self { handler: OrderHandler::new(pool.clone(), Wake::new()), pool, _database: database })
    }

    /// Inserts an order in this state, with the version that the state implies.
    async fn insert(&self, state: OrderState) -> anyhow::Result<Uuid> {
        let id = Uuid::now_v7();
        let version = match state {
            OrderState::Pending | OrderState::Reserved | OrderState::Paid => 1,
            OrderState::Confirmed | OrderState::Cancelled => 2,
        };
        sqlx::query(
            "insert into orders (id, customer_id, status, total_amount, currency, version, confirmed_at, cancelled_at,
                                 cancelled_for)
             values ($1, $1, $2, 625, 'EUR', $3, case $2 when 'confirmed' then now() end,
                     case $2 when 'cancelled' then now() end, case $2 when 'cancelled' then 'customer' end)",
        )
        .bind(id)
        .bind(state.name())
        .bind(version)
        .execute(&self.pool)
        .await?;
        Ok(id)
    }

    /// An order's status and version, and the types of its events and of its answers.
    async fn read(&self, id: Uuid) -> anyhow::Result<(String, i32, Vec<String>, Vec<String>)> {
        Ok(sqlx::query_as(
            "select status, version,
                    array(select event_type from outbox where aggregate_id = id order by aggregate_version),
                    array(select event_type from answers where order_id = orders.id order by answers.id)
             from orders where id = $1",
        )
        .bind(id)
        .fetch_one(&self.pool)
        .await?)
    }
}

/// The event by which another service answers.
fn answer(order_id: Uuid, trigger: Trigger) -> Event {
    let id = Uuid::now_v7();
    let amount = Money { amount: 625, currency: "EUR".into() };
    match trigger {
        Trigger::StockReserved => event(id, &StockReserved { reservation_id: id, order_id }),
        Trigger::StockRejected => {
            let (reservation_id, sku) = (id, "POT-003".into());
            event(id, &StockRejected { reservation_id, order_id, sku, wanted: 5, available: 2 })
        }
        Trigger::StockReleased => event(id, &StockReleased { reservation_id: id, order_id }),
        Trigger::PaymentCaptured => {
            event(id, &PaymentCaptured { payment_id: id, order_id, amount, charge_id: Uuid::now_v7() })
        }
        Trigger::PaymentDeclined => {
            event(id, &PaymentDeclined { payment_id: id, order_id, reason: "no money".into() })
        }
        Trigger::PaymentRefunded => {
            event(id, &PaymentRefunded { payment_id: id, order_id, amount, refund_id: Uuid::now_v7() })
        }
        Trigger::CustomerCancels | Trigger::WaitedTooLong => {
            panic!("{trigger:?} is not an answer of another service")
        }
    }
}

/// The event as its consumer receives it.
fn event(aggregate: Uuid, data: &impl Data) -> Event {
    let event = NewEvent::of(aggregate, 1, &TraceContext::root(), data).unwrap();
    events::decode(event.payload.as_bytes(), Some(&event.event_id.to_string()), None).unwrap()
}

/// The answers of other services.
const ANSWERS: [Trigger; 6] = [
    Trigger::StockReserved,
    Trigger::StockRejected,
    Trigger::StockReleased,
    Trigger::PaymentCaptured,
    Trigger::PaymentDeclined,
    Trigger::PaymentRefunded,
];

#[tokio::test]
async fn every_transition_is_made_and_every_other_answer_is_refused_and_changes_nothing() -> anyhow::Result<()>
{
    let orders = Orders::start().await?;
    for state in OrderState::ALL {
        for trigger in ANSWERS {
            let order = orders.insert(state).await?;
            let before = orders.read(order).await?;
            let applied = orders.handler.apply(&[answer(order, trigger)]).await;
            let (status, version, events, answers) = orders.read(order).await?;
            let Some(next) = state.after(trigger) else {
                assert!(matches!(applied, Err(Failure::Permanent(_))), "{trigger:?} at {state}: {applied:?}");
                assert_eq!((status, version, events, answers), before, "{trigger:?} at {state}");
                continue;
            };
            assert_eq!(applied.unwrap(), Applied { first: 1, duplicates: 0 }, "{trigger:?} at {state}");
            assert_eq!((status.as_str(), answers.len()), (next.name(), 1), "{trigger:?} at {state}");
            // Only the two final states are published as events.
            let expected = match next {
                _ if next == state => vec![],
                OrderState::Confirmed => vec!["OrderConfirmed"],
                OrderState::Cancelled => vec!["OrderCancelled"],
                _ => vec![],
            };
            assert_eq!(events, expected, "{trigger:?} at {state}");
            assert_eq!(version, before.1 + i32::try_from(events.len())?, "{trigger:?} at {state}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn two_positive_answers_in_one_group_confirm_an_order_once_in_either_order() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    for answers in [
        [Trigger::StockReserved, Trigger::PaymentCaptured],
        [Trigger::PaymentCaptured, Trigger::StockReserved],
    ] {
        let order = orders.insert(OrderState::Pending).await?;
        let group = answers.map(|trigger| answer(order, trigger));
        orders.handler.apply(&group).await?;
        // The group is delivered again, as after a crash between the commit and the acknowledgement.
        let again = orders.handler.apply(&group).await?;
        assert_eq!(again, Applied { first: 0, duplicates: 2 });
        let (status, version, events, answers) = orders.read(order).await?;
        assert_eq!((status.as_str(), version), ("confirmed", 2));
        assert_eq!((events, answers.len()), (vec!["OrderConfirmed".to_owned()], 2));
    }
    Ok(())
}

#[tokio::test]
async fn negative_answer_cancels_with_its_cause_and_a_later_positive_one_changes_nothing()
-> anyhow::Result<()> {
    let orders = Orders::start().await?;
    for (negative, positive, cause) in [
        (Trigger::StockRejected, Trigger::PaymentCaptured, "outOfStock"),
        (Trigger::PaymentDeclined, Trigger::StockReserved, "paymentDeclined"),
    ] {
        let order = orders.insert(OrderState::Pending).await?;
        orders.handler.apply(&[answer(order, negative), answer(order, positive)]).await?;
        let (status, version, events, answers) = orders.read(order).await?;
        assert_eq!((status.as_str(), version, answers.len()), ("cancelled", 2, 2));
        assert_eq!(events, ["OrderCancelled"]);
        let (column, payload): (String, String) = sqlx::query_as(
            "select cancelled_for, payload::text from orders join outbox on aggregate_id = id where id = $1",
        )
        .bind(order)
        .fetch_one(&orders.pool)
        .await?;
        assert_eq!(column, cause);
        let event: serde_json::Value = serde_json::from_str(&payload)?;
        assert_eq!((&event["data"]["cause"], &event["sequence"]), (&cause.into(), &2.into()));
    }
    Ok(())
}

#[tokio::test]
async fn payment_or_refund_of_another_amount_than_the_order_is_a_permanent_failure() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let other = Money { amount: 1, currency: "EUR".into() };
    for state in [OrderState::Pending, OrderState::Cancelled] {
        let (order_id, id) = (orders.insert(state).await?, Uuid::now_v7());
        let before = orders.read(order_id).await?;
        let amount = other.clone();
        let answer = match state {
            OrderState::Pending => {
                event(id, &PaymentCaptured { payment_id: id, order_id, amount, charge_id: id })
            }
            _ => event(id, &PaymentRefunded { payment_id: id, order_id, amount, refund_id: id }),
        };
        let refused = orders.handler.apply(&[answer]).await;
        assert!(matches!(refused, Err(Failure::Permanent(_))), "{refused:?}");
        assert_eq!(orders.read(order_id).await?, before);
    }
    Ok(())
}

#[tokio::test]
async fn answer_to_an_unknown_order_is_a_permanent_failure() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let refused = orders.handler.apply(&[answer(Uuid::now_v7(), Trigger::StockReserved)]).await;
    assert!(matches!(refused, Err(Failure::Permanent(_))), "{refused:?}");
    Ok(())
}
