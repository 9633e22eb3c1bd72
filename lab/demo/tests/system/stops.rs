//! Services and the payment provider are stopped with SIGTERM under load. The drill `saga` kills each of them.

use anyhow::Result;
use demo::lab::{CONDITION_DEADLINE, Stage};
use testbed::eventually;

/// Orders a second, without optimisation.
const RATE: u32 = 40;

/// Waits until more orders are confirmed than now, by this number. Counts only: a reconciliation compares all orders with all
/// tables, and one after the other they would take the processor from the system under load.
async fn more_confirmed(stage: &Stage, orders: i64) -> Result<()> {
    let confirmed = async || -> sqlx::Result<i64> {
        let sql = "select count(*) from orders.orders where status = 'confirmed'";
        sqlx::query_scalar(sql).fetch_one(&stage.auditor).await
    };
    let before = confirmed().await?;
    eventually(&format!("{orders} more orders to be confirmed"), CONDITION_DEADLINE, async || {
        Ok((confirmed().await? > before + orders).then_some(()))
    })
    .await
}

#[tokio::test]
async fn services_that_stop_under_load_exit_with_zero_and_lose_nothing() -> Result<()> {
    let vhost = testbed::vhost().await?;
    let stage = Stage::with_defaults(&vhost.url()).await?;
    let load = stage.load_until_stopped(RATE);
    more_confirmed(&stage, 50).await?;
    for process in ["inventory", "billing", "provider", "orders"] {
        // Fails if the process does not stop within the time that services promise.
        assert_eq!(stage.system.terminate(process).await?, Some(0), "{process}");
        stage.system.start_again(process).await?;
        stage.system.wait_ready(CONDITION_DEADLINE).await?;
    }
    load.stop().await?;
    stage.held().await?;
    Ok(())
}
