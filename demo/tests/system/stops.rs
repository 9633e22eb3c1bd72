use std::time::Duration;

use testbed::eventually;

use demo::lab::{PATIENCE, Stage};

/// Kills `service` three times under load, and counts.
async fn killed_under_load(service: &str) -> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let stage = Stage::set(&vhost.url()).await?;
    let load = stage.load(100, Duration::from_secs(9));
    for _ in 0..3 {
        let before = stage.audit().await?.confirmed;
        eventually("some orders to be through", PATIENCE, async || {
            let audit = stage.audit().await?;
            Ok((audit.confirmed > before + 40).then_some(()))
        })
        .await?;
        stage.system.kill(service).await?;
        stage.system.start_again(service).await?;
        stage.system.wait_ready(PATIENCE).await?;
    }
    load.await??;
    stage.held().await?;
    Ok(())
}

#[tokio::test]
async fn the_order_service_with_its_relay_is_killed_under_load() -> anyhow::Result<()> {
    killed_under_load("orders").await
}

#[tokio::test]
async fn the_inventory_service_is_killed_under_load() -> anyhow::Result<()> {
    killed_under_load("inventory").await
}

#[tokio::test]
async fn the_billing_service_is_killed_under_load() -> anyhow::Result<()> {
    killed_under_load("billing").await
}

#[tokio::test]
async fn the_payment_provider_is_killed_under_load() -> anyhow::Result<()> {
    killed_under_load("provider").await
}

#[tokio::test]
async fn a_stop_under_load_is_orderly_and_leaves_nothing_half_done() -> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let stage = Stage::set(&vhost.url()).await?;
    let load = stage.load(100, Duration::from_secs(8));
    eventually("some orders to be through", PATIENCE, async || {
        Ok((stage.audit().await?.confirmed > 50).then_some(()))
    })
    .await?;
    for service in ["inventory", "billing", "provider", "orders"] {
        // Waits ten seconds and a little: a service that takes longer is an error here.
        assert_eq!(stage.system.terminate(service).await?, Some(0), "{service}");
        stage.system.start_again(service).await?;
        stage.system.wait_ready(PATIENCE).await?;
    }
    load.await??;
    stage.held().await?;
    Ok(())
}
