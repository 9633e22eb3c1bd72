//! Events on their way from the order service to the tables of the others.

use anyhow::{Context as _, ensure};
use demo::RunningSystem;
use demo::lab::{CONDITION_DEADLINE, Setup};
use serde_json::{Value, json};
use testbed::eventually;
use uuid::Uuid;

#[tokio::test]
async fn order_reaches_both_services_in_one_trace() -> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default()).await?;
    let id = system.order().await?;
    let result = system.held().await?;
    assert_eq!((result.in_inventory, result.in_billing, result.reserved, result.confirmed), (1, 1, 3, 1));

    // Its history shows when its event was published.
    let order = system.read_order(id).await?;
    assert!(order["history"][0]["publishedAt"].is_string(), "{order}");

    // The logs of the three services have one trace id, and those of consumers name the event.
    let line_of = |service: &str| {
        let log = system.processes()?.log(service)?;
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
pub(crate) async fn publish(system: &RunningSystem, body: &str, message_id: &str) -> anyhow::Result<()> {
    let properties = json!({ "message_id": message_id, "delivery_mode": 2 });
    system.broker_api()?.publish_as("shop.events", "order.created", body, &properties).await
}

/// The AMQP client reads headers recursively: with the usual stack, each process that receives the message would end.
#[tokio::test]
async fn message_with_deeply_nested_headers_ends_no_process() -> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default()).await?;
    let nested = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    let message = format!(
        r#"{{"routing_key": "order.created", "payload": "x", "payload_encoding": "string",
             "properties": {{"message_id": "nested", "delivery_mode": 2, "headers": {{"x": {nested}}}}}}}"#
    );
    system.broker_api()?.publish_message("shop.events", message).await?;
    system.order().await?;
    assert_eq!(system.held().await?.confirmed, 1);
    for service in ["inventory", "billing"] {
        system.until_metric(service, "inbox_dead_lettered_total", 1.0).await?;
        assert_eq!(system.metric(service, "inbox_dead_lettered_total").await?, 1.0, "{service}");
    }
    let letter = system.admin("inventory", "/admin/dead-letters/1", None).await?;
    assert!(letter["headers"].to_string().contains("nested too deeply"), "{letter}");
    Ok(())
}

/// The first instance has no relay, and the second one only relays, which would poll once an hour.
#[tokio::test]
async fn process_that_only_relays_publishes_what_another_without_relays_has_written() -> anyhow::Result<()> {
    let setup = Setup::default().with_instances(2, 1, 1).with("ORDERS_RELAY_POLL", "1h");
    let system = RunningSystem::shared(setup).await?;
    for (name, only, workers) in [("orders", "false", "0"), ("orders-2", "true", "2")] {
        system.processes()?.terminate(name).await?;
        system.processes()?.set("ORDERS_RELAY_ONLY", only);
        system.processes()?.set("ORDERS_RELAY_WORKERS", workers);
        system.processes()?.start_again(name).await?;
    }
    system.processes()?.wait_ready(CONDITION_DEADLINE).await?;
    for _ in 0..5 {
        system.order().await?;
    }
    assert_eq!(system.held().await?.confirmed, 5);
    let refused = reqwest::get(format!("{}/orders", system.url("orders-2")?)).await?;
    assert_eq!(refused.status(), 404);
    assert!(system.metric("orders-2", "outbox_published_total").await? >= 5.0);
    Ok(())
}
