//! The relay: claim by state, publish, then mark, and scan even when no wake-up comes.

use std::time::Duration;

use anyhow::Result;
use sqlx::Connection as _;
use testbed::{eventually, longer};
use tokio::time::timeout;

use super::{
    faults::applied,
    judge::{Breach, judge},
};
use crate::lab::{CONDITION_DEADLINE, CrashFile, Setup, copy_order, resume_process};
use crate::running_system::RunningSystem;

/// Two instances: the relay that has claimed the first event freezes, and the other one finds the second.
pub(super) async fn frozen_with_a_creation(setup: Setup) -> Result<Option<Breach>> {
    let once = CrashFile::new();
    let setup = setup.with_instances(2, 1, 1).crashing_at("relay-claimed:freeze", once.path());
    let system = RunningSystem::shared(setup).await?;
    let frozen = once.frozen_by(async || system.order_once().await.map(drop)).await?;
    let original = system.read("select min(id::text) from orders.orders").await?;
    let other = if system.processes()?.pid("orders") == Some(frozen) { "orders-2" } else { "orders" };
    system.cancel_at(system.processes()?.url(other)?, original.trim().parse()?).await?;
    // The other relay scans and finds nothing claimable, or it publishes the cancellation first.
    let _ = eventually("the cancellation to overtake", Duration::from_secs(8), async || {
        Ok((!system.reconcile_acknowledged().await?.findings.is_empty()).then_some(()))
    })
    .await;
    resume_process(frozen)?;
    judge(&system).await
}

pub(super) async fn late_commit(setup: Setup) -> Result<Option<Breach>> {
    let system = RunningSystem::shared(setup).await?;
    let original = system.order().await?;
    let mut late = system.connect("orders").await?;
    let mut transaction = late.begin().await?;
    let copy = copy_order(&mut transaction, original).await?;
    for _ in 0..10 {
        system.order().await?;
    }
    // With a cursor that two relays share, some of these may be skipped already.
    let _ = applied(&system, 11, Duration::from_secs(10)).await;
    transaction.commit().await?;
    system.note(copy);
    judge(&system).await
}

pub(super) async fn no_wake_up(setup: Setup) -> Result<Option<Breach>> {
    let system = RunningSystem::shared(setup).await?;
    let original = system.order().await?;
    // To its end: its confirmation is a wake-up too.
    system.held().await?;
    let mut writer = system.connect("orders").await?;
    // A subscription that was silent for 30 s is renewed, and that wakes the relay. These begin with a notification, and are
    // longer than the judge waits.
    let notified: String =
        sqlx::query_scalar("select clock_timestamp()::text").fetch_one(&mut writer).await?;
    sqlx::query("select outbox_wake()").execute(&mut writer).await?;
    let has_scanned = "select exists (
        select from pg_stat_activity
        where application_name = 'relay' and datname = current_database() and usename = current_user
            and state = 'idle' and query_start > $1::timestamptz
    )";
    eventually("the relay to scan", CONDITION_DEADLINE, async || {
        let scanned: bool = sqlx::query_scalar(has_scanned).bind(&notified).fetch_one(&mut writer).await?;
        Ok(scanned.then_some(()))
    })
    .await?;
    let mut transaction = writer.begin().await?;
    let copy = copy_order(&mut transaction, original).await?;
    transaction.commit().await?;
    system.note(copy);
    judge(&system).await
}

pub(super) async fn woken_in_time(setup: Setup) -> Result<Option<Breach>> {
    let setup = setup.with("ORDERS_RELAY_POLL", "20s").with("ORDERS_RELAY_FULL_SCAN", "20s");
    let system = RunningSystem::shared(setup).await?;
    // On any machine before the poll.
    let soon = longer(Duration::from_secs(10)).min(Duration::from_secs(15));
    for placed in 1..=4 {
        system.order().await?;
        if !timeout(soon, applied(&system, placed, soon)).await.is_ok_and(|applied| applied.is_ok()) {
            let seconds = soon.as_secs();
            return Ok(Breach::new("I8", format!("order {placed} was not applied within {seconds} s")));
        }
    }
    judge(&system).await
}
