//! What is owed is asked for until it is settled, once, whatever happens meanwhile. Against the provider's own code, and a
//! database.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use billing::{KeepAccounts, Teller, TellerOptions};
use events::{
    Body, Cause, Data, Event, Line, Money, OrderCancelled, OrderCreated, TraceContext, transport::Handler,
};
use outbox::Wake;
use serde_json::{Value, json};
use sqlx::PgPool;
use testbed::{TestDatabase, eventually};
use time::OffsetDateTime;
use tokio::{net::TcpListener, sync::Notify};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(30);

/// Billing and the provider, without their processes.
struct Office {
    handler: KeepAccounts,
    pool: PgPool,
    bell: Arc<Notify>,
    provider: SocketAddr,
    ledger: PgPool,
    stop: CancellationToken,
    _database: TestDatabase,
}

async fn office() -> anyhow::Result<Office> {
    let database = testbed::database().await?;
    testbed::migrate(database.urls()).await?;
    let ledger = PgPool::connect(&database.url("provider")).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let provider = listener.local_addr()?;
    let app = provider::router(provider::Provider::new(ledger.clone()));
    tokio::spawn(async move { axum::serve(listener, app).await });
    let (pool, bell) = (PgPool::connect(&database.url("billing")).await?, Arc::new(Notify::new()));
    let handler = KeepAccounts::new(pool.clone(), bell.clone());
    Ok(Office { handler, pool, bell, provider, ledger, stop: CancellationToken::new(), _database: database })
}

impl Drop for Office {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Office {
    /// A teller who leaves what others have in hand alone for so long.
    fn teller(&self, hands_off: Duration) -> anyhow::Result<()> {
        let url = format!("http://{}/", self.provider).parse()?;
        let provider = billing::Provider::new(url, Duration::from_secs(3))?;
        let options = TellerOptions { calls: 4, hands_off };
        let teller = Teller::new(self.pool.clone(), provider, Wake::new(), self.bell.clone(), options);
        tokio::spawn(teller.run(self.stop.clone()));
        Ok(())
    }

    async fn faults(&self, faults: Value) -> anyhow::Result<()> {
        let put = reqwest::Client::new().put(format!("http://{}/faults", self.provider)).json(&faults);
        put.send().await?.error_for_status()?;
        Ok(())
    }

    async fn until(&self, order: Uuid, state: &str) -> anyhow::Result<()> {
        eventually(&format!("the payment to be {state}"), PATIENCE, async || {
            let now: Option<String> = sqlx::query_scalar("select state from payments where order_id = $1")
                .bind(order)
                .fetch_optional(&self.pool)
                .await?;
            Ok((now.as_deref() == Some(state)).then_some(()))
        })
        .await
    }

    /// What was said about an order, in order; charges, and what was given back of them.
    async fn books(&self, order: Uuid) -> anyhow::Result<(Vec<String>, i64, i64)> {
        let said = sqlx::query_scalar(
            "select event_type from outbox where payload -> 'data' ->> 'orderId' = $1::text order by seq",
        );
        let said = said.bind(order).fetch_all(&self.pool).await?;
        let (charges, refunded) = sqlx::query_as(
            "select count(*), coalesce(sum(refunded), 0)::bigint from charges
             where reference = $1 and status = 'captured'",
        )
        .bind(order)
        .fetch_one(&self.ledger)
        .await?;
        Ok((said, charges, refunded))
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

fn created(order_id: Uuid, customer_id: Uuid) -> Event {
    let lines = vec![Line { sku: "TEA-001".into(), quantity: 1, unit_price: 625 }];
    let total = Money { amount: 625, currency: "EUR".into() };
    let body = OrderCreated { order_id, customer_id, lines, total };
    event(order_id, OrderCreated::TYPE, 1, Body::OrderCreated(body))
}

fn cancelled(order_id: Uuid) -> Event {
    let body = OrderCancelled { order_id, cause: Cause::Customer, detail: String::new() };
    event(order_id, OrderCancelled::TYPE, 2, Body::OrderCancelled(body))
}

#[tokio::test]
async fn a_payment_is_captured_and_given_back_when_the_order_is_off() -> anyhow::Result<()> {
    let office = office().await?;
    office.teller(Duration::from_secs(6))?;
    let order = Uuid::now_v7();
    office.handler.apply(&[created(order, Uuid::new_v4())]).await?;
    office.until(order, "captured").await?;
    office.handler.apply(&[cancelled(order)]).await?;
    office.until(order, "refunded").await?;
    let said = vec!["PaymentCaptured".to_owned(), "PaymentRefunded".to_owned()];
    assert_eq!(office.books(order).await?, (said, 1, 625));
    Ok(())
}

#[tokio::test]
async fn a_payment_that_nobody_has_asked_for_yet_is_void_and_never_asked_for() -> anyhow::Result<()> {
    let office = office().await?;
    let order = Uuid::now_v7();
    office.handler.apply(&[created(order, Uuid::new_v4()), cancelled(order)]).await?;
    office.until(order, "void").await?;
    office.teller(Duration::from_secs(6))?;
    // The next one is asked for: then the teller has looked.
    let next = Uuid::now_v7();
    office.handler.apply(&[created(next, Uuid::new_v4())]).await?;
    office.until(next, "captured").await?;
    assert_eq!(office.books(order).await?, (vec![], 0, 0));
    Ok(())
}

#[tokio::test]
async fn a_cancellation_while_the_charge_is_under_way_ends_in_a_refund() -> anyhow::Result<()> {
    let office = office().await?;
    office.faults(json!([{ "fault": "slow", "milliseconds": 1000, "times": 1 }])).await?;
    office.teller(Duration::from_secs(6))?;
    let order = Uuid::now_v7();
    office.handler.apply(&[created(order, Uuid::new_v4())]).await?;
    eventually("the payment to be in hand", PATIENCE, async || {
        let attempts: i32 = sqlx::query_scalar("select attempts from payments where order_id = $1")
            .bind(order)
            .fetch_one(&office.pool)
            .await?;
        Ok((attempts == 1).then_some(()))
    })
    .await?;
    office.handler.apply(&[cancelled(order)]).await?;
    office.until(order, "refunded").await?;
    let said = vec!["PaymentCaptured".to_owned(), "PaymentRefunded".to_owned()];
    assert_eq!(office.books(order).await?, (said, 1, 625));
    Ok(())
}

#[tokio::test]
async fn two_tellers_that_ask_at_the_same_time_charge_once() -> anyhow::Result<()> {
    let office = office().await?;
    // Neither leaves alone what the other has in hand, and the provider takes its time.
    office.faults(json!([{ "fault": "slow", "milliseconds": 1500, "times": 2 }])).await?;
    office.teller(Duration::from_millis(1))?;
    office.teller(Duration::from_millis(1))?;
    let order = Uuid::now_v7();
    office.handler.apply(&[created(order, Uuid::new_v4())]).await?;
    office.until(order, "captured").await?;
    let asked: i64 = reqwest::get(format!("http://{}/faults", office.provider))
        .await?
        .json::<Value>()
        .await?
        .as_array()
        .unwrap()
        .len()
        .try_into()?;
    assert_eq!(asked, 0, "nobody asked twice: nothing was tested");
    assert_eq!(office.books(order).await?, (vec!["PaymentCaptured".to_owned()], 1, 0));
    Ok(())
}

#[tokio::test]
async fn errors_are_asked_for_again_and_a_decline_is_final() -> anyhow::Result<()> {
    let office = office().await?;
    office.faults(json!([{ "fault": "error-after", "times": 2 }])).await?;
    office.teller(Duration::from_secs(6))?;
    let (order, poor) = (Uuid::now_v7(), Uuid::now_v7());
    let without_money = format!("dec11ed0{}", &Uuid::new_v4().to_string()[8..]).parse()?;
    office.handler.apply(&[created(order, Uuid::new_v4()), created(poor, without_money)]).await?;
    office.until(order, "captured").await?;
    office.until(poor, "declined").await?;
    assert_eq!(office.books(order).await?, (vec!["PaymentCaptured".to_owned()], 1, 0));
    assert_eq!(office.books(poor).await?, (vec!["PaymentDeclined".to_owned()], 0, 0));
    Ok(())
}
