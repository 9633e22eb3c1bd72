//! What counts as published: a confirm, and nothing else, under an id that stays the same.

use std::time::Duration;

use anyhow::Result;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use testbed::eventually;
use uuid::Uuid;

use super::{
    faults::{hold_lanes, unbind_before_thaw},
    judge::{Breach, judge},
};
use crate::fault::Fault;
use crate::lab::{CONDITION_DEADLINE, CrashFile, Setup};
use crate::part::BROKER;
use crate::running_system::RunningSystem;

pub(super) async fn frozen_and_killed(setup: Setup) -> Result<Option<Breach>> {
    let system = RunningSystem::private(setup).await?;
    // RabbitMQ 3.10, killed within a second or so of a quorum queue's creation, comes back without a leader for it, for
    // good. This experiment is not about that.
    system.load(20, Duration::from_secs(7)).await?;
    system.held().await?;
    Fault::Freeze(BROKER).inject(&system).await?;
    system.orders(20).await?;
    // A relay that waits for confirms leaves all events pending; one that does not marks them soon.
    let _ = eventually("everything to be marked", Duration::from_secs(8), async || {
        Ok((system.reconcile_acknowledged().await?.pending == 0).then_some(()))
    })
    .await;
    let killed = Fault::Kill(BROKER).inject(&system).await?;
    killed.repair(&system).await?;
    system.processes()?.wait_ready(CONDITION_DEADLINE).await?;
    judge(&system).await
}

/// With one relay: while it restores one binding after the other, a second relay could publish to the first queue alone
/// (docs/guarantees.md). A relay restores lost bindings until the moment in which it sends, also after a pause of two seconds,
/// so the bindings are deleted while it is frozen behind that moment.
pub(super) async fn unbound(setup: Setup) -> Result<Option<Breach>> {
    let once = CrashFile::new();
    let setup = setup.with("ORDERS_RELAY_WORKERS", "1");
    let setup = setup.crashing_in("orders", "batch-half-sent:freeze", once.path());
    let system = RunningSystem::shared(setup).await?;
    let frozen = once.frozen_by(async || system.order_once().await.map(drop)).await?;
    unbind_before_thaw(&system, frozen).await?;
    judge(&system).await
}

/// One batch holds creations, which cannot be routed, and cancellations, which can: so the return of one message meets the
/// confirm of another. The middle of the batch, where the relay freezes, lies among the creations; the returns are of the
/// later ones, and the confirms behind them are of the later cancellations.
pub(super) async fn unbound_with_a_backlog(setup: Setup) -> Result<Option<Breach>> {
    let once = CrashFile::new();
    once.disarm()?;
    let setup = setup.with("ORDERS_RELAY_BATCH", "4000").with("ORDERS_RELAY_WORKERS", "1");
    let setup = setup.crashing_in("orders", "batch-half-sent:freeze", once.path());
    let system = RunningSystem::shared(setup).await?;
    system.orders(60).await?;
    system.held().await?;
    let first = system.acknowledged();
    let (early, late) = first.split_at(first.len() / 4);
    let lanes = hold_lanes(&system).await?;
    cancel(&system, early).await?;
    system.orders(60).await?;
    cancel(&system, late).await?;
    once.arm()?;
    drop(lanes);
    let frozen = once.frozen().await?;
    unbind_before_thaw(&system, frozen).await?;
    judge(&system).await
}

async fn cancel(system: &RunningSystem, orders: &[Uuid]) -> Result<()> {
    stream::iter(orders).map(|id| system.cancel(*id)).buffer_unordered(8).try_collect().await
}
