//! What becomes of an order when inventory and billing answer: in any order, twice, too late, and against all sense.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use events::{
    Body, Data, Event, Money, PaymentCaptured, PaymentDeclined, PaymentRefunded, StockRejected,
    StockReleased, StockReserved, TraceContext,
    transport::{Applied, Failure, Handler},
};
use orders::{
    FollowOrders,
    order_state::{Happening, State},
};
use outbox::Wake;
use sqlx::PgPool;
use testbed::TestDatabase;
use time::OffsetDateTime;
use uuid::Uuid;

struct House {
    handler: FollowOrders,
    pool: PgPool,
    _database: TestDatabase,
}

async fn house() -> anyhow::Result<House> {
    let database = testbed::database().await?;
    testbed::migrate(database.urls()).await?;
    let pool = PgPool::connect(&database.url("orders")).await?;
    Ok(House { handler: FollowOrders::new(pool.clone(), Wake::new()), pool, _database: database })
}

impl House {
    /// An order in this state, with as many events behind it as that takes.
    async fn order(&self, state: State) -> anyhow::Result<Uuid> {
        let id = Uuid::now_v7();
        let version = match state {
            State::Pending | State::Reserved | State::Paid => 1,
            State::Confirmed | State::Cancelled => 2,
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

    /// Status, version, and the types of all events and of all answers of an order.
    async fn look(&self, id: Uuid) -> anyhow::Result<(String, i32, Vec<String>, Vec<String>)> {
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

/// What the other services would say.
fn said(order_id: Uuid, happening: Happening) -> Event {
    let (reservation_id, payment_id) = (Uuid::now_v7(), Uuid::now_v7());
    let amount = Money { amount: 625, currency: "EUR".into() };
    let (event_type, body) = match happening {
        Happening::StockReserved => {
            (StockReserved::TYPE, Body::StockReserved(StockReserved { reservation_id, order_id }))
        }
        Happening::StockRejected => {
            let body =
                StockRejected { reservation_id, order_id, sku: "POT-003".into(), wanted: 5, available: 2 };
            (StockRejected::TYPE, Body::StockRejected(body))
        }
        Happening::StockReleased => {
            (StockReleased::TYPE, Body::StockReleased(StockReleased { reservation_id, order_id }))
        }
        Happening::PaymentCaptured => {
            let body = PaymentCaptured { payment_id, order_id, amount, charge_id: Uuid::now_v7() };
            (PaymentCaptured::TYPE, Body::PaymentCaptured(body))
        }
        Happening::PaymentDeclined => {
            let body = PaymentDeclined { payment_id, order_id, reason: "no money".into() };
            (PaymentDeclined::TYPE, Body::PaymentDeclined(body))
        }
        Happening::PaymentRefunded => {
            let body = PaymentRefunded { payment_id, order_id, amount, refund_id: Uuid::now_v7() };
            (PaymentRefunded::TYPE, Body::PaymentRefunded(body))
        }
        Happening::CustomerCancels | Happening::WaitedTooLong => {
            panic!("no other service says {happening:?}")
        }
    };
    Event {
        id: Uuid::now_v7(),
        event_type,
        aggregate_id: payment_id,
        aggregate_version: 1,
        time: OffsetDateTime::now_utc(),
        trace: TraceContext::root(),
        body,
    }
}

/// The six things that other services say.
fn answers() -> impl Iterator<Item = Happening> {
    let own = [Happening::CustomerCancels, Happening::WaitedTooLong];
    Happening::ALL.into_iter().filter(move |happening| !own.contains(happening))
}

#[tokio::test]
async fn every_move_of_the_table_is_made_and_every_other_one_is_refused_and_changes_nothing()
-> anyhow::Result<()> {
    let house = house().await?;
    for state in State::ALL {
        for happening in answers() {
            let order = house.order(state).await?;
            let before = house.look(order).await?;
            let applied = house.handler.apply(&[said(order, happening)]).await;
            let (status, version, events, answers) = house.look(order).await?;
            let Some(next) = state.after(happening) else {
                assert!(
                    matches!(applied, Err(Failure::Permanent(_))),
                    "{happening:?} at {state}: {applied:?}"
                );
                assert_eq!((status, version, events, answers), before, "{happening:?} at {state}");
                continue;
            };
            assert_eq!(applied.unwrap(), Applied { first: 1, duplicates: 0 }, "{happening:?} at {state}");
            assert_eq!((status.as_str(), answers.len()), (next.name(), 1), "{happening:?} at {state}");
            // The two ends are events, and nothing else is.
            let expected = match next {
                _ if next == state => vec![],
                State::Confirmed => vec!["OrderConfirmed"],
                State::Cancelled => vec!["OrderCancelled"],
                _ => vec![],
            };
            assert_eq!(events, expected, "{happening:?} at {state}");
            assert_eq!(version, before.1 + i32::try_from(events.len())?, "{happening:?} at {state}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn both_answers_in_one_group_confirm_an_order_once_whichever_comes_first() -> anyhow::Result<()> {
    let house = house().await?;
    for answers in [
        [Happening::StockReserved, Happening::PaymentCaptured],
        [Happening::PaymentCaptured, Happening::StockReserved],
    ] {
        let order = house.order(State::Pending).await?;
        let group = answers.map(|happening| said(order, happening));
        house.handler.apply(&group).await?;
        // And once more, as after a crash between the commit and the acknowledgement.
        let again = house.handler.apply(&group).await?;
        assert_eq!(again, Applied { first: 0, duplicates: 2 });
        let (status, version, events, answers) = house.look(order).await?;
        assert_eq!((status.as_str(), version), ("confirmed", 2));
        assert_eq!((events, answers.len()), (vec!["OrderConfirmed".to_owned()], 2));
    }
    Ok(())
}

#[tokio::test]
async fn a_no_cancels_with_its_cause_and_a_yes_that_comes_after_it_changes_nothing() -> anyhow::Result<()> {
    let house = house().await?;
    for (no, late_yes, cause) in [
        (Happening::StockRejected, Happening::PaymentCaptured, "outOfStock"),
        (Happening::PaymentDeclined, Happening::StockReserved, "paymentDeclined"),
    ] {
        let order = house.order(State::Pending).await?;
        house.handler.apply(&[said(order, no), said(order, late_yes)]).await?;
        let (status, version, events, answers) = house.look(order).await?;
        assert_eq!((status.as_str(), version, answers.len()), ("cancelled", 2, 2));
        assert_eq!(events, ["OrderCancelled"]);
        let (column, payload): (String, String) = sqlx::query_as(
            "select cancelled_for, payload::text from orders join outbox on aggregate_id = id where id = $1",
        )
        .bind(order)
        .fetch_one(&house.pool)
        .await?;
        assert_eq!(column, cause);
        let event: serde_json::Value = serde_json::from_str(&payload)?;
        assert_eq!((&event["data"]["cause"], &event["sequence"]), (&cause.into(), &2.into()));
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_to_an_order_that_nobody_placed_is_set_aside() -> anyhow::Result<()> {
    let house = house().await?;
    let refused = house.handler.apply(&[said(Uuid::now_v7(), Happening::StockReserved)]).await;
    assert!(matches!(refused, Err(Failure::Permanent(_))), "{refused:?}");
    Ok(())
}
