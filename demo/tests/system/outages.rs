use std::time::Duration;

use anyhow::ensure;
use testbed::{Postgres, Rabbitmq, SystemOptions, eventually};

use demo::lab::{PATIENCE, Setup, Stage};

#[tokio::test]
async fn the_broker_is_killed_and_restarted_under_load_and_nothing_is_lost() -> anyhow::Result<()> {
    let broker = Rabbitmq::private().await?;
    let stage = Stage::set(&broker.url()).await?;
    let load = stage.load(50, Duration::from_secs(16));
    eventually("some orders to be through", PATIENCE, async || {
        Ok((stage.audit().await?.in_billing > 50).then_some(()))
    })
    .await?;
    broker.kill().await?;
    let at_the_kill = stage.accepted();
    eventually("orders to be accepted without a broker", PATIENCE, async || {
        Ok((stage.accepted() > at_the_kill + 100).then_some(()))
    })
    .await?;
    let during = stage.audit().await?;
    assert!(during.owed > 50, "the broker was dead, and only {} events are owed", during.owed);
    broker.start().await?;
    let summary = load.await??;
    assert_eq!(summary.failed + summary.refused_in_all(), 0, "orders failed with the broker: {summary:?}");
    let audit = stage.held().await?;
    assert_eq!(audit.orders, summary.accepted);
    Ok(())
}

#[tokio::test]
async fn a_thousand_orders_are_accepted_while_the_broker_is_away_and_all_effects_follow() -> anyhow::Result<()>
{
    let broker = Rabbitmq::private().await?;
    let stage = Stage::set(&broker.url()).await?;
    broker.stop().await?;
    for _ in 0..1000 {
        stage.order().await?;
    }
    eventually("health to tell the truth", PATIENCE, async || {
        let orders = stage.client.get(format!("{}/readyz", stage.system.orders_url())).send().await?;
        let billing = stage.client.get(format!("{}/readyz", stage.system.url("billing")?)).send().await?;
        ensure!(orders.status() == 200, "orders are accepted, and /readyz says {}", orders.status());
        let health: serde_json::Value = orders.json().await?;
        ensure!(health["parts"]["broker"]["up"] == false, "orders does not know");
        ensure!(billing.status() == 503, "billing says {}", billing.status());
        Ok(Some(()))
    })
    .await?;
    broker.start().await?;
    let audit = stage.held().await?;
    assert_eq!(
        (audit.orders, audit.confirmed, audit.in_inventory, audit.in_billing),
        (1000, 1000, 1000, 1000)
    );
    Ok(())
}

#[tokio::test]
async fn a_broker_that_is_frozen_and_wakes_up_again_loses_nothing() -> anyhow::Result<()> {
    let broker = Rabbitmq::private().await?;
    let stage = Stage::set(&broker.url()).await?;
    stage.order().await?;
    stage.held().await?;
    broker.pause().await?;
    for _ in 0..20 {
        stage.order().await?;
    }
    eventually("the frozen broker to be noticed", PATIENCE, async || {
        let health = stage.client.get(format!("{}/readyz", stage.system.url("inventory")?)).send().await?;
        ensure!(health.status() == 503, "inventory says {}", health.status());
        Ok(Some(()))
    })
    .await?;
    broker.resume().await?;
    stage.held().await?;
    Ok(())
}

#[tokio::test]
async fn the_database_is_killed_under_load_and_every_acknowledged_order_survives() -> anyhow::Result<()> {
    let postgres = Postgres::private().await?;
    let vhost = testbed::vhost().await?;
    let passwords = testbed::Passwords::all("secret");
    testbed::bootstrap(&postgres.admin_url("postgres"), &passwords).await?;
    let urls = testbed::DatabaseUrls::new(&postgres.admin_url("postgres"), &passwords)?;
    let system = testbed::System::start(SystemOptions::new(urls.clone(), vhost.url())).await?;
    system.wait_ready(PATIENCE).await?;
    let stage = Stage::around(system, &urls.auditor).await?;
    let load = stage.load(50, Duration::from_secs(10));
    eventually("some orders to be accepted", PATIENCE, async || Ok((stage.accepted() > 100).then_some(())))
        .await?;
    postgres.kill().await?;
    postgres.start().await?;
    let summary = load.await??;
    assert!(summary.accepted > 200, "it did not come back: {summary:?}");
    stage.held().await?;
    Ok(())
}

#[tokio::test]
async fn services_that_start_before_their_servers_wait_and_then_work() -> anyhow::Result<()> {
    let broker = Rabbitmq::private().await?;
    broker.stop().await?;
    let stage = Stage::raise(&broker.url(), Setup::default()).await?;
    eventually("orders to be ready without a broker", PATIENCE, async || {
        let health = stage.client.get(format!("{}/readyz", stage.system.orders_url())).send().await?;
        Ok((health.status() == 200).then_some(()))
    })
    .await?;
    // Before any queue exists: without the publisher's own declarations this event would be dropped by the exchange.
    stage.order().await?;
    broker.start().await?;
    stage.system.wait_ready(PATIENCE).await?;
    stage.held().await?;
    Ok(())
}
