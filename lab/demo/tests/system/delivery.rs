//! Events on their way from the order service to the tables of the others.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use demo::lab::{BrokerApi, CONDITION_DEADLINE, Setup, Stage};
use serde_json::{Value, json};
use testbed::{Instances, TestVhost, eventually};
use uuid::Uuid;

#[tokio::test]
async fn order_reaches_both_services_in_one_trace() -> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let stage = Stage::with_defaults(&vhost.url()).await?;
    let id = stage.order().await?;
    let result = stage.held().await?;
    assert_eq!((result.in_inventory, result.in_billing, result.reserved, result.confirmed), (1, 1, 3, 1));

    // Its history shows when its event was published.
    let order = stage.read(id).await?;
    assert!(order["history"][0]["publishedAt"].is_string(), "{order}");

    // The logs of the three services have one trace id, and those of consumers name the event.
    let line_of = |service: &str| {
        let log = stage.system.log(service)?;
        let line = log.lines().find(|line| line.contains(&id.to_string()));
        anyhow::Ok(line.and_then(|line| serde_json::from_str::<Value>(line).ok()))
    };
    let trace = |service: &str| {
        anyhow::Ok(line_of(service)?.and_then(|line| Some(line["span"]["trace_id"].as_str()?.to_owned())))
    };
    eventually("the order to be in all three logs", CONDITION_DEADLINE, async || {
        let (placed, reserved, paid) = (trace("orders")?, trace("inventory")?, trace("billing")?);
        ensure!(placed.is_some() && reserved == placed && paid == placed, "{placed:?} {reserved:?} {paid:?}");
        Ok(Some(()))
    })
    .await?;
    let line = line_of("inventory")?.context("inventory's line is gone")?;
    let span = &line["span"];
    assert_eq!((&span["event_type"], &span["aggregate_id"]), (&json!("OrderCreated"), &json!(id)), "{line}");
    assert!(span["event_id"].as_str().is_some_and(|event| event.parse::<Uuid>().is_ok()), "{line}");
    Ok(())
}

/// Publishes a message over the broker's HTTP API, since this crate has no AMQP client.
pub(crate) async fn publish(vhost: &TestVhost, body: &str, message_id: &str) -> anyhow::Result<()> {
    let properties = json!({ "message_id": message_id, "delivery_mode": 2 });
    BrokerApi::new(vhost.api_url(), vhost.name())?
        .publish_as("shop.events", "order.created", body, &properties)
        .await
}

/// The AMQP client reads headers recursively: with the usual stack, each process that receives the message would end.
#[tokio::test]
async fn message_with_deeply_nested_headers_ends_no_process() -> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let stage = Stage::with_defaults(&vhost.url()).await?;
    let url = format!("{}/api/exchanges/{}/shop.events/publish", vhost.api_url(), vhost.name());
    let nested = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    let message = format!(
        r#"{{"routing_key": "order.created", "payload": "x", "payload_encoding": "string",
             "properties": {{"message_id": "nested", "delivery_mode": 2, "headers": {{"x": {nested}}}}}}}"#
    );
    let answer =
        stage.client.post(url).header("content-type", "application/json").body(message).send().await?;
    ensure!(answer.status().is_success(), "the broker answered {}", answer.status());
    stage.order().await?;
    assert_eq!(stage.held().await?.confirmed, 1);
    for service in ["inventory", "billing"] {
        eventually("it to be set aside", CONDITION_DEADLINE, async || {
            Ok((stage.counter(service, "inbox_dead_lettered_total").await? == 1.0).then_some(()))
        })
        .await?;
    }
    let letter = stage.admin("inventory", "/admin/dead-letters/1", None).await?;
    assert!(letter["headers"].to_string().contains("nested too deeply"), "{letter}");
    Ok(())
}

/// The first instance has no relay, and the second one only relays, which would poll once an hour.
#[tokio::test]
async fn process_that_only_relays_publishes_what_another_without_relays_has_written() -> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let instances = Instances { orders: 2, ..Instances::default() };
    let setup = Setup { instances, ..Setup::default() }.with("ORDERS_RELAY_POLL", "1h");
    let stage = Stage::ready(&vhost.url(), setup).await?;
    for (name, only, workers) in [("orders", "false", "0"), ("orders-2", "true", "2")] {
        stage.system.terminate(name).await?;
        stage.system.set("ORDERS_RELAY_ONLY", only);
        stage.system.set("ORDERS_RELAY_WORKERS", workers);
        stage.system.start_again(name).await?;
    }
    stage.system.wait_ready(CONDITION_DEADLINE).await?;
    for _ in 0..5 {
        stage.order().await?;
    }
    assert_eq!(stage.held().await?.confirmed, 5);
    let refused = stage.client.get(format!("{}/orders", stage.system.url("orders-2")?)).send().await?;
    assert_eq!(refused.status(), 404);
    assert!(stage.counter("orders-2", "outbox_published_total").await? >= 5.0);
    Ok(())
}

#[tokio::test]
async fn instances_that_start_together_on_an_empty_database_apply_all_orders() -> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let instances = Instances { orders: 3, inventory: 2, billing: 2 };
    let stage = Stage::ready(&vhost.url(), Setup { instances, ..Setup::default() }).await?;
    let summary = stage.load(100, Duration::from_secs(4)).await??;
    // On a machine that is busy with other tests, an instance may refuse an order (503): then the order does not exist.
    assert!(summary.accepted > 0 && summary.failed == 0, "{summary:?}");
    let result = stage.held().await?;
    assert_eq!(result.orders, summary.accepted);
    Ok(())
}
