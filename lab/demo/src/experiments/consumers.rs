//! The consumer remembers what it has applied.

use anyhow::Result;
use testbed::eventually;

use super::{
    faults::applied,
    judge::{Breach, judge},
};
use crate::lab::{CONDITION_DEADLINE, Setup};
use crate::running_system::RunningSystem;

pub(super) async fn published_again(setup: Setup) -> Result<Option<Breach>> {
    // The complete system keeps its records.
    let keeps_records = !setup.settings.iter().any(|(name, _)| name == "SABOTAGE");
    let system = RunningSystem::shared(setup).await?;
    for _ in 0..5 {
        system.order().await?;
    }
    system.held().await?;
    eventually("the records to be erased", CONDITION_DEADLINE, async || {
        let records = "select count(*)::text from inventory.processed_events";
        Ok((keeps_records || system.number::<u64>(records).await? == 0).then_some(()))
    })
    .await?;
    let again = "update outbox set published_at = null; select outbox_wake()";
    system.execute_as("orders", again).await?;
    system.until_published().await?;
    // The sixth order comes after the copies: when it is applied, so are they.
    system.order().await?;
    applied(&system, 6, CONDITION_DEADLINE).await?;
    judge(&system).await
}
