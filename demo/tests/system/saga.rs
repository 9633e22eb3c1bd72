//! Orders from their beginning to their end, and what is undone when that end is not a good one.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use demo::lab::{PATIENCE, Setup, Stage};
use load_tests::{Load, Mix};
use serde_json::{Value, json};
use testbed::eventually;
use uuid::Uuid;

/// A customer whom the provider's stand-in always declines.
fn without_money() -> anyhow::Result<Uuid> {
    Ok(format!("dec11ed0{}", &Uuid::new_v4().to_string()[8..]).parse()?)
}

/// The types of what happened to an order, in its own view.
fn story(order: &Value) -> Vec<&str> {
    order["history"].as_array().into_iter().flatten().filter_map(|event| event["type"].as_str()).collect()
}

#[tokio::test]
async fn each_order_comes_to_its_end_and_its_history_tells_how() -> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let stage = Stage::set(&vhost.url()).await?;
    let good = stage.order().await?;
    let too_much = json!([{ "sku": "POT-003", "quantity": 500 }]);
    let scarce = stage.order_of(Uuid::new_v4(), too_much).await?;
    let poor = stage.order_of(without_money()?, json!([{ "sku": "TEA-001", "quantity": 1 }])).await?;
    let audit = stage.held().await?;
    assert_eq!((audit.confirmed, audit.cancelled), (1, 2));
    assert_eq!((audit.charged - audit.refunded, audit.put_aside), (2 * 625 + 1450, 3));

    let order = stage.read(good).await?;
    let told = story(&order);
    assert_eq!(
        (&order["status"], told.first(), told.last()),
        (&json!("confirmed"), Some(&"OrderCreated"), Some(&"OrderConfirmed"))
    );
    assert!(told.contains(&"StockReserved") && told.contains(&"PaymentCaptured"), "{told:?}");
    for event in order["history"].as_array().context("no history")? {
        let ours = event["source"] == "/orders";
        assert_eq!(
            (event["publishedAt"].is_string(), event["appliedAt"].is_string()),
            (ours, !ours),
            "{event}"
        );
    }
    for (id, cause, answers) in [
        (scarce, "outOfStock", ["StockRejected", "PaymentCaptured", "PaymentRefunded"]),
        (poor, "paymentDeclined", ["PaymentDeclined", "StockReserved", "StockReleased"]),
    ] {
        let order = stage.read(id).await?;
        assert_eq!((&order["status"], &order["cause"]), (&json!("cancelled"), &json!(cause)));
        let told = story(&order);
        // A payment that billing had not begun to ask for when it heard of the cancellation is never made.
        let void = !told.contains(&"PaymentCaptured") && cause == "outOfStock";
        assert!(void || answers.iter().all(|answer| told.contains(answer)), "{told:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_confirmed_order_can_be_taken_back_and_all_of_it_is_undone() -> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let stage = Stage::set(&vhost.url()).await?;
    let id = stage.order().await?;
    assert_eq!(stage.held().await?.confirmed, 1);
    stage.cancel(id).await?;
    let audit = stage.held().await?;
    assert_eq!((audit.confirmed, audit.cancelled, audit.put_aside), (0, 1, 0));
    assert_eq!((audit.charged, audit.refunded), (2700, 2700));
    let order = stage.read(id).await?;
    let told = story(&order);
    assert!(told.contains(&"StockReleased") && told.contains(&"PaymentRefunded"), "{told:?}");
    assert_eq!(order["cause"], "customer");
    Ok(())
}

#[tokio::test]
async fn an_order_that_nobody_answers_is_shown_and_given_up_and_what_comes_late_is_undone()
-> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let stage = Stage::ready(&vhost.url(), Setup::default().with("ORDERS_ANSWER_WITHIN", "4s")).await?;
    stage.system.kill("inventory").await?;
    let id = stage.order().await?;
    let open = async || {
        let url = format!("{}/admin/open-orders", stage.system.admin_url("orders")?);
        let answer = stage.client.get(url).bearer_auth(stage.system.admin_token()).send().await?;
        anyhow::Ok(answer.error_for_status()?.json::<Value>().await?)
    };
    eventually("the order to wait for inventory alone, in the list and in the gauge", PATIENCE, async || {
        let listed = open().await?;
        let gauge = stage.counter("orders", "orders_open").await?;
        Ok((listed[0]["id"] == id.to_string()
            && listed[0]["waitingFor"] == json!(["inventory"])
            && gauge == 1.0)
            .then_some(()))
    })
    .await?;
    eventually("the order to be given up", PATIENCE, async || {
        let order = stage.read(id).await?;
        Ok((order["status"] == "cancelled" && order["cause"] == "timedOut").then_some(()))
    })
    .await?;
    assert_eq!(open().await?, json!([]));
    // Inventory comes back to a creation and its cancellation; billing has given the money back long before.
    stage.system.start_again("inventory").await?;
    let audit = stage.held().await?;
    assert_eq!((audit.confirmed, audit.cancelled, audit.put_aside), (0, 1, 0));
    assert_eq!((audit.charged, audit.refunded), (2700, 2700));
    Ok(())
}

/// The order service is away for longer than anybody may take to answer. The answers are in its queue when it comes back.
#[tokio::test]
async fn after_an_outage_of_the_order_service_what_was_answered_in_time_is_not_given_up() -> anyhow::Result<()>
{
    let vhost = testbed::vhost().await?;
    let stage = Stage::ready(&vhost.url(), Setup::default().with("ORDERS_ANSWER_WITHIN", "10s")).await?;
    // Its answers wait until it has come back, and is older than the limit by then.
    stage.system.pause("inventory")?;
    stage.order().await?;
    eventually("the order to be published and paid for", PATIENCE, async || {
        let audit = stage.audit().await?;
        Ok((audit.charges == 1 && audit.owed == 0).then_some(()))
    })
    .await?;
    stage.system.kill("orders").await?;
    stage.system.resume("inventory")?;
    eventually("inventory to have answered, and the limit to be over", PATIENCE, async || {
        let late: bool = sqlx::query_scalar(
            "select exists (select from orders.orders where placed_at < clock_timestamp() - interval '11 seconds')",
        )
        .fetch_one(&stage.auditor)
        .await?;
        let audit = stage.audit().await?;
        Ok((late && audit.in_inventory == 1 && audit.owed == 0).then_some(()))
    })
    .await?;
    stage.system.start_again("orders").await?;
    stage.system.wait_ready(PATIENCE).await?;
    assert_eq!(stage.held().await?.confirmed, 1);
    Ok(())
}

/// Everything that a provider can do to its customers, at once.
#[tokio::test]
async fn whatever_the_provider_does_charges_are_captured_payments_and_nobody_is_charged_twice()
-> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let setup = Setup::default().with("BILLING_PROVIDER_DEADLINE", "500ms");
    let stage = Stage::ready(&vhost.url(), setup).await?;
    stage
        .provider_faults(json!([
            { "fault": "error-after", "percent": 20 },
            { "fault": "hang-after", "percent": 10 },
            { "fault": "error-before", "percent": 10 },
            { "fault": "slow", "percent": 20, "milliseconds": 300 },
            { "fault": "decline", "percent": 5 },
        ]))
        .await?;
    let load = Load { mix: Mix::Real, ..Load::new(stage.system.orders_url(), 40, Duration::from_secs(5)) };
    let load = stage.run(load);
    // Most of these are charged for before inventory's no is heard, and then refunded.
    for _ in 0..10 {
        stage.order_of(Uuid::new_v4(), json!([{ "sku": "POT-003", "quantity": 500 }])).await?;
    }
    for kill in 1..=3 {
        eventually("more orders to be under way", PATIENCE, async || {
            Ok((stage.accepted() > 50 * kill).then_some(()))
        })
        .await?;
        stage.system.kill("billing").await?;
        stage.system.start_again("billing").await?;
    }
    load.await??;
    let struck = stage.counter("provider", "provider_faults_struck_total").await?;
    ensure!(struck > 20.0, "only {struck} faults struck: nothing was tested");
    stage.provider_faults(json!([])).await?;
    let audit = stage.held().await?;
    assert!(audit.confirmed > 50 && audit.cancelled > 10 && audit.refunded > 0, "{audit:?}");
    Ok(())
}
