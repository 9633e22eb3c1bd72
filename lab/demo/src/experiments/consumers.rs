//! The consumer: acknowledge after the commit, record with the effect, set aside what can never be applied.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use testbed::{eventually, longer};
use uuid::Uuid;

use super::{
    faults::applied,
    judge::{Breach, judge},
};
use crate::lab::{CONDITION_DEADLINE, CrashFile, Setup, foreign_event};
use crate::reconciliation::{Kind, Reconciliation};
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

/// A well-formed answer about an order that does not exist: the order service can never apply it.
pub(super) async fn poison(setup: Setup) -> Result<Option<Breach>> {
    let system = RunningSystem::shared(setup).await?;
    system.order().await?;
    system.held().await?;
    let id = Uuid::now_v7().to_string();
    let data = json!({ "reservationId": id, "orderId": Uuid::now_v7() });
    let event = foreign_event(&id, &id, "StockReserved", &data);
    system.broker_api()?.publish("orders.events", &event, &id).await?;
    for _ in 0..5 {
        system.order().await?;
    }
    let soon = Duration::from_secs(12);
    let aside = eventually("the message to be set aside with its reason", soon, async || {
        let counted = system.metric("orders", "inbox_dead_lettered_total{reason=\"permanent\"}").await?;
        Ok((counted >= 1.0).then_some(()))
    });
    if aside.await.is_err() {
        let seconds = longer(soon).as_secs();
        let what = format!("a bad message was not set aside with its reason within {seconds} s");
        return Ok(Breach::new("I11", what));
    }
    judge(&system).await
}

/// Each time, the process dies after it has received a group and before it has begun a transaction.
pub(super) async fn crash_loop(setup: Setup) -> Result<Option<Breach>> {
    let once = CrashFile::new();
    once.disarm()?;
    let system = RunningSystem::shared(setup.crashing_at("group-received:kill", once.path())).await?;
    system.order().await?;
    // With the answers: one that inventory had not published yet would stay pending while it is killed.
    system.held().await?;
    system.processes()?.kill("inventory").await?;
    for _ in 0..40 {
        system.order().await?;
    }
    let done = |found: &Reconciliation| {
        let left = found.pending + found.payments_pending + found.count(Kind::Missing, "billing");
        found.in_billing >= 41 && left == 0
    };
    system.until_records("the other services to be done, so that only inventory crashes", done).await?;
    // Twice in a group, five times alone. The eighth time it is set aside, and the next one crashes.
    for _ in 0..9 {
        once.arm()?;
        system.processes()?.start_again("inventory").await?;
        system.ended(once.process().await?).await?;
    }
    system.revive().await?;
    let found = judge(&system).await?;
    // All the others were held together with it at each crash.
    let aside = system.reconcile_acknowledged().await?.waiting_for_operator();
    if found.is_none() && aside != 1 {
        return Ok(Breach::new("I11", format!("{aside} messages are set aside")));
    }
    Ok(found)
}
