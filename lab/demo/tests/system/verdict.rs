//! What is late is not lost, and what is lost is found before a deadline passes.

use std::time::{Duration, Instant};

use demo::RunningSystem;
use demo::lab::{CONDITION_DEADLINE, Setup};
use demo::reconciliation::{Ending, Kind, Wait};
use testbed::longer;

#[tokio::test]
async fn an_effect_that_a_frozen_consumer_has_not_applied_is_in_progress() -> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default()).await?;
    system.order().await?;
    system.held().await?;
    system.processes()?.pause("inventory")?;
    system.order().await?;
    system.until_published().await?;
    // Longer than after which it would be lost.
    let settled = system.settle_acknowledged(Wait::until_decided(longer(Duration::from_secs(20)))).await?;
    assert!(settled.reconciliation.count(Kind::Missing, "inventory") > 0, "{:?}", settled.reconciliation);
    assert_eq!(settled.broken(), None);
    let why = settled.undecided().unwrap();
    assert!(why.contains("inventory does not answer"), "{why}");
    system.processes()?.resume("inventory")?;
    system.held().await?;
    Ok(())
}

#[tokio::test]
async fn an_acknowledged_cancellation_that_did_not_happen_is_counted() -> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default()).await?;
    let (cancelled, other) = (system.order().await?, system.order().await?);
    system.cancel(cancelled).await?;
    assert_eq!(system.lost_cancellations(&[cancelled]).await?, 0);
    assert_eq!(system.lost_cancellations(&[cancelled, other, uuid::Uuid::new_v4()]).await?, 2);
    Ok(())
}

#[tokio::test]
async fn an_effect_whose_message_is_gone_is_lost_soon() -> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default()).await?;
    system.order().await?;
    system.held().await?;
    let processes = system.processes()?;
    processes.kill("inventory").await?;
    system.order().await?;
    system.until_published().await?;
    system.broker_api()?.purge("inventory.events").await?;
    processes.start_again("inventory").await?;
    processes.wait_ready(CONDITION_DEADLINE).await?;
    let began = Instant::now();
    // A wait by time alone would take the whole of it.
    let deadline = longer(CONDITION_DEADLINE);
    let settled = system.settle_acknowledged(Wait::until_decided(deadline)).await?;
    assert_eq!(settled.ending, Ending::Lost);
    assert!(began.elapsed() < deadline);
    let broken = settled.broken().unwrap();
    assert!(broken.contains("inventory never applied the order"), "{broken}");
    Ok(())
}
