use anyhow::{Context, ensure};
use serde_json::{Value, json};
use testbed::{Instances, TestVhost, eventually};
use uuid::Uuid;

use demo::lab::{PATIENCE, Setup, Stage};

#[tokio::test]
async fn an_order_reaches_both_services_in_one_trace() -> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let stage = Stage::set(&vhost.url()).await?;
    let id = stage.order().await?;
    let audit = stage.held().await?;
    assert_eq!((audit.in_inventory, audit.in_billing, audit.put_aside, audit.confirmed), (1, 1, 3, 1));

    // Its history says when it was published.
    let order: Value =
        stage.client.get(format!("{}/orders/{id}", stage.system.orders_url())).send().await?.json().await?;
    assert!(order["history"][0]["publishedAt"].is_string(), "{order}");

    // One trace id in the logs of three services.
    let trace = |service: &str| {
        let log = stage.system.log(service)?;
        let line = log.lines().find(|line| line.contains(&id.to_string())).map(str::to_owned);
        anyhow::Ok(line.and_then(|line| {
            let line: Value = serde_json::from_str(&line).ok()?;
            line["span"]["trace_id"].as_str().map(String::from)
        }))
    };
    eventually("the order to be in all three logs", PATIENCE, async || {
        let (placed, reserved, paid) = (trace("orders")?, trace("inventory")?, trace("billing")?);
        ensure!(placed.is_some() && reserved == placed && paid == placed, "{placed:?} {reserved:?} {paid:?}");
        Ok(Some(()))
    })
    .await
}

#[tokio::test]
async fn an_event_that_is_published_again_and_again_has_one_effect() -> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let stage = Stage::set(&vhost.url()).await?;
    for _ in 0..20 {
        stage.order().await?;
    }
    stage.held().await?;
    // What a lost mark looks like to the relay: published, and not known to be.
    let database = stage.database.as_ref().context("a database of our own")?;
    let orders = sqlx::PgPool::connect(&database.url("orders")).await?;
    for _ in 0..3 {
        sqlx::query("update outbox set published_at = null").execute(&orders).await?;
        sqlx::query("select outbox_wake()").execute(&orders).await?;
        stage.held().await?;
    }
    eventually("both services to have dropped the copies", PATIENCE, async || {
        let inventory = stage.counter("inventory", "inbox_duplicates_total").await?;
        let billing = stage.counter("billing", "inbox_duplicates_total").await?;
        ensure!(inventory >= 60.0 && billing >= 60.0, "dropped {inventory} and {billing}");
        Ok(Some(()))
    })
    .await?;
    stage.held().await?;
    Ok(())
}

/// Puts a message on the exchange by the broker's HTTP API: this test speaks no AMQP.
pub(crate) async fn publish(
    stage: &Stage,
    vhost: &TestVhost,
    body: &str,
    message_id: &str,
) -> anyhow::Result<()> {
    let api = vhost.api_url();
    let url = format!("{api}/api/exchanges/{}/shop.events/publish", vhost.name());
    let message = json!({
        "routing_key": "order.created", "payload": body, "payload_encoding": "string",
        "properties": { "message_id": message_id, "delivery_mode": 2 },
    });
    let answer = stage.client.post(url).json(&message).send().await?;
    ensure!(answer.status().is_success(), "the broker answered {}", answer.status());
    Ok(())
}

#[tokio::test]
async fn a_poison_message_is_set_aside_and_the_next_orders_go_on() -> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let stage = Stage::set(&vhost.url()).await?;
    stage.order().await?;
    let poison = ["", "not json", "{}", "[]", "\u{0}", &format!("{{\"id\":\"{}\"}}", Uuid::nil())];
    for (number, body) in poison.iter().enumerate() {
        publish(&stage, &vhost, body, &format!("poison-{number}")).await?;
        stage.order().await?;
    }
    let audit = stage.held().await?;
    assert_eq!(audit.in_billing, 7);
    for service in ["inventory", "billing"] {
        eventually("the poison to be counted", PATIENCE, async || {
            let dead = stage.counter(service, "inbox_dead_lettered_total").await?;
            ensure!(dead >= 6.0, "{service} has set aside {dead}");
            Ok(Some(()))
        })
        .await?;
        let log = stage.system.log(service)?;
        assert!(log.contains("set aside in the dead letters"), "{service} did not say so");
    }
    Ok(())
}

#[tokio::test]
async fn several_instances_start_at_once_on_an_empty_database_and_share_the_work() -> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let instances = Instances { orders: 3, inventory: 2, billing: 2 };
    let stage = Stage::raise(&vhost.url(), Setup { instances, ..Setup::default() }).await?;
    stage.system.wait_ready(PATIENCE).await?;
    let load = stage.load(100, std::time::Duration::from_secs(4));
    let summary = load.await??;
    assert_eq!(summary.failed + summary.refused_in_all(), 0, "{summary:?}");
    let audit = stage.held().await?;
    assert_eq!(audit.orders, summary.accepted);
    Ok(())
}
