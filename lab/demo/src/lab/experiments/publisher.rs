//! What counts as published: a confirm, and nothing else, under an id that stays the same.

use std::time::Duration;

use anyhow::Result;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use testbed::{Rabbitmq, eventually};
use tokio::time::timeout;
use uuid::Uuid;

use super::{
    super::{CONDITION_DEADLINE, CrashFile, Setup, Stage},
    faults::{Lanes, stage, unbind_before_thaw},
    judge::{Breach, judge},
};

pub(super) async fn frozen_and_killed(setup: Setup) -> Result<Option<Breach>> {
    let broker = Rabbitmq::private().await?;
    let stage = Stage::ready(&broker.url(), setup).await?;
    // RabbitMQ 3.10, killed within a second or so of a quorum queue's creation, comes back without a leader for it, for
    // good. This experiment is not about that.
    stage.load(20, Duration::from_secs(7)).await??;
    stage.held().await?;
    broker.pause().await?;
    for _ in 0..20 {
        stage.order().await?;
    }
    // A relay that waits for confirms leaves all events pending; one that does not marks them soon.
    let _ = eventually("everything to be marked", Duration::from_secs(2), async || {
        Ok((stage.reconcile().await?.pending == 0).then_some(()))
    })
    .await;
    broker.kill().await?;
    broker.start().await?;
    stage.system.wait_ready(CONDITION_DEADLINE).await?;
    judge(&stage).await
}

/// With one relay: while it restores one binding after the other, a second relay could publish to the first queue alone
/// (docs/guarantees.md). A relay restores lost bindings until the moment in which it sends, also after a pause of two seconds,
/// so the bindings are deleted while it is frozen behind that moment.
pub(super) async fn unbound(setup: Setup) -> Result<Option<Breach>> {
    let once = CrashFile::new();
    let setup = setup.with("ORDERS_RELAY_WORKERS", "1");
    let (stage, vhost) = stage(setup.crashing_in("orders", "batch-half-sent:freeze", once.path())).await?;
    let _ = timeout(Duration::from_secs(2), stage.order()).await;
    let frozen = once.frozen().await?;
    unbind_before_thaw(&stage, &vhost, frozen).await?;
    judge(&stage).await
}

/// One batch holds creations, which cannot be routed, and cancellations, which can: so the return of one message meets the
/// confirm of another. The middle of the batch, where the relay freezes, lies among the creations; the returns are of the
/// later ones, and the confirms behind them are of the later cancellations.
pub(super) async fn unbound_with_a_backlog(setup: Setup) -> Result<Option<Breach>> {
    let once = CrashFile::new();
    once.disarm()?;
    let setup = setup.with("ORDERS_RELAY_BATCH", "4000").with("ORDERS_RELAY_WORKERS", "1");
    let (stage, vhost) = stage(setup.crashing_in("orders", "batch-half-sent:freeze", once.path())).await?;
    stage.load(60, Duration::from_secs(1)).await??;
    stage.held().await?;
    let first = stage.acknowledged();
    let (early, late) = first.split_at(first.len() / 4);
    let lanes = Lanes::hold(&stage).await?;
    cancel(&stage, early).await?;
    stage.load(60, Duration::from_secs(1)).await??;
    cancel(&stage, late).await?;
    once.arm()?;
    drop(lanes);
    let frozen = once.frozen().await?;
    unbind_before_thaw(&stage, &vhost, frozen).await?;
    judge(&stage).await
}

async fn cancel(stage: &Stage, orders: &[Uuid]) -> Result<()> {
    stream::iter(orders).map(|id| stage.cancel(*id)).buffer_unordered(8).try_collect().await
}
