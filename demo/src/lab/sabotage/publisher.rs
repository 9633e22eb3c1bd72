//! What counts as published: a confirm, and nothing else, under a name that stays the same.

use std::time::Duration;

use anyhow::Result;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use testbed::{Rabbitmq, eventually};
use tokio::time::timeout;

use super::{
    super::{PATIENCE, Stage},
    Breach, Experiment, Setup,
    judge::judge,
    stage,
    strike::{Lanes, Once, gone, unbind_before},
};

pub(super) static EXPERIMENTS: [Experiment; 4] = [
    Experiment {
        name: "confirms-off",
        invariants: &["I3"],
        fault: "the broker freezes, is sent 20 messages, and is killed",
        run: |setup| Box::pin(frozen_and_killed(setup)),
    },
    Experiment {
        name: "unroutable-ignored",
        invariants: &["I3"],
        fault: "the queues of inventory and billing lose their binding",
        run: |setup| Box::pin(unbound(setup.with("ORDERS_RELAY_WORKERS", "1"))),
    },
    Experiment {
        name: "return-trusted-to-its-confirm",
        invariants: &["I3"],
        fault: "creations lose their binding while 600 of them and 600 cancellations wait to be published together",
        run: |setup| {
            Box::pin(unbound_with_a_backlog(
                setup.with("ORDERS_RELAY_BATCH", "4000").with("ORDERS_RELAY_WORKERS", "1"),
            ))
        },
    },
    Experiment {
        name: "new-id-per-attempt",
        invariants: &["I4", "I5"],
        fault: "the relay is killed between the confirm and the mark",
        run: |setup| Box::pin(killed_before_mark(setup)),
    },
];

async fn frozen_and_killed(setup: Setup) -> Result<Option<Breach>> {
    let broker = Rabbitmq::private().await?;
    let stage = Stage::ready(&broker.url(), setup).await?;
    // RabbitMQ 3.10, killed within a second or so of a quorum queue's creation, comes back without a leader for it, for
    // good. That is not what is tried here.
    stage.load(20, Duration::from_secs(7)).await??;
    stage.held().await?;
    // Everything below until the kill has to be quicker than the two seconds after which silence is looked into.
    stage.order().await?;
    broker.pause().await?;
    for _ in 0..20 {
        stage.order().await?;
    }
    // A relay that waits for confirms still owes them all; one that does not is soon done.
    let _ = eventually("everything to be marked", Duration::from_secs(1), async || {
        Ok((stage.audit().await?.owed == 0).then_some(()))
    })
    .await;
    broker.kill().await?;
    broker.start().await?;
    stage.system.wait_ready(PATIENCE).await?;
    judge(&stage).await
}

async fn unbound(setup: Setup) -> Result<Option<Breach>> {
    // With one relay: while it binds one queue after the other again, a second one could publish to the first queue alone
    // (docs/guarantees.md). Relays declare lost bindings again within seconds: so this one has to have its event in hand already.
    let once = Once::new();
    let (stage, vhost) = stage(setup.striking("relay-claimed:freeze", once.path())).await?;
    let _ = timeout(Duration::from_secs(2), stage.order()).await;
    let frozen = once.struck_by().await?;
    unbind_before(&stage, &vhost, frozen).await?;
    judge(&stage).await
}

async fn unbound_with_a_backlog(setup: Setup) -> Result<Option<Breach>> {
    let once = Once::new();
    once.disarm()?;
    let (stage, vhost) = stage(setup.striking("relay-claimed:freeze", once.path())).await?;
    // A return meets the wrong confirm now and then, not always: so this is tried a few times.
    for _ in 0..4 {
        // Half of the batch can be routed and half cannot: then returns and confirms of different messages meet.
        let before = stage.accepted();
        stage.load(300, Duration::from_secs(2)).await??;
        stage.held().await?;
        let first = stage.acknowledged().split_off(before);
        let lanes = Lanes::hold(&stage).await?;
        let load = stage.load(300, Duration::from_secs(2));
        let cancelling = stream::iter(first).map(|id| stage.cancel(id)).buffer_unordered(8);
        cancelling.try_collect::<Vec<()>>().await?;
        load.await??;
        once.arm()?;
        drop(lanes);
        let frozen = once.struck_by().await?;
        unbind_before(&stage, &vhost, frozen).await?;
        let breach = judge(&stage).await?;
        if breach.is_some() {
            return Ok(breach);
        }
    }
    Ok(None)
}

async fn killed_before_mark(setup: Setup) -> Result<Option<Breach>> {
    let once = Once::new();
    let (stage, _vhost) = stage(setup.striking("relay-confirmed:kill", once.path())).await?;
    let _ = stage.order().await;
    once.struck().await?;
    gone(&stage, "orders").await?;
    stage.revive().await?;
    stage.order().await?;
    judge(&stage).await
}
