//! What the relay owes its name to: claim by state, publish, then mark, and look even when nobody calls.

use std::time::Duration;

use anyhow::{Result, ensure};
use sqlx::{Connection as _, PgConnection};
use testbed::{Instances, eventually};
use tokio::time::timeout;
use uuid::Uuid;

use super::{
    Breach, Experiment, Setup,
    judge::judge,
    stage,
    strike::{Once, applied, copy_order, gone, thaw},
};

pub(super) static EXPERIMENTS: [Experiment; 5] = [
    Experiment {
        name: "mark-before-confirm",
        invariants: &["I3"],
        fault: "the relay is killed after its commit",
        run: |setup| Box::pin(killed_after_commit(setup)),
    },
    Experiment {
        name: "cursor-over-seq",
        invariants: &["I3", "I8"],
        fault: "a transaction commits later than the ones that began after it",
        run: |setup| Box::pin(late_commit(setup)),
    },
    Experiment {
        name: "skip-locked-on-rows",
        invariants: &["I6"],
        fault: "a relay is frozen with an order's creation in hand, and the order is cancelled",
        run: |setup| Box::pin(frozen_with_a_creation(setup)),
    },
    Experiment {
        name: "woken-only",
        invariants: &["I3", "I8"],
        fault: "another writer commits an event and wakes nobody",
        run: |setup| Box::pin(nobody_woken(setup)),
    },
    Experiment {
        name: "wake-before-commit",
        invariants: &["I8"],
        fault: "none; the poll is set to 20 s, so that wake-ups have to be right",
        run: |setup| Box::pin(woken_in_time(setup)),
    },
];

async fn killed_after_commit(setup: Setup) -> Result<Option<Breach>> {
    let once = Once::new();
    let (stage, _vhost) = stage(setup.striking("relay-committed:kill", once.path())).await?;
    // The process may be gone before it has answered: then nobody was promised anything.
    let _ = stage.order().await;
    once.struck().await?;
    gone(&stage, "orders").await?;
    stage.revive().await?;
    stage.order().await?;
    judge(&stage).await
}

/// Two instances; the relay that has claimed the first event freezes, and the other one is there for the second.
async fn frozen_with_a_creation(setup: Setup) -> Result<Option<Breach>> {
    let once = Once::new();
    let instances = Instances { orders: 2, ..Instances::default() };
    let setup = Setup { instances, ..setup.striking("relay-claimed:freeze", once.path()) };
    let (stage, _vhost) = stage(setup).await?;
    // The process that accepts the order wakes its own relay first, and may freeze before it has answered.
    let _ = timeout(Duration::from_secs(2), stage.order()).await;
    let frozen = once.struck_by().await?;
    let original: Uuid = sqlx::query_scalar("select id from orders.orders").fetch_one(&stage.auditor).await?;
    let other = if stage.system.pid("orders") == Some(frozen) { "orders-2" } else { "orders" };
    let url = format!("{}/orders/{original}/cancellation", stage.system.url(other)?);
    let answer = stage.client.post(url).send().await?;
    ensure!(answer.status() == 200, "the cancellation was answered with {}", answer.status());
    // The other relay has looked, and gone on, or it has published what it should not.
    let _ = eventually("the cancellation to overtake", Duration::from_secs(8), async || {
        Ok((!stage.audit().await?.findings.is_empty()).then_some(()))
    })
    .await;
    thaw(frozen)?;
    judge(&stage).await
}

async fn late_commit(setup: Setup) -> Result<Option<Breach>> {
    let (stage, _vhost) = stage(setup).await?;
    let original = stage.order().await?;
    let mut late = PgConnection::connect(&stage.database_url("orders")?).await?;
    let mut transaction = late.begin().await?;
    let copy = copy_order(&mut transaction, original).await?;
    for _ in 0..10 {
        stage.order().await?;
    }
    // With a cursor that two relays share, some of these may be skipped already.
    let _ = applied(&stage, 11, Duration::from_secs(10)).await;
    transaction.commit().await?;
    stage.note(copy);
    judge(&stage).await
}

async fn nobody_woken(setup: Setup) -> Result<Option<Breach>> {
    let (stage, _vhost) = stage(setup).await?;
    let original = stage.order().await?;
    // To its very end: its confirmation is a ring too.
    stage.held().await?;
    let mut writer = PgConnection::connect(&stage.database_url("orders")?).await?;
    let mut transaction = writer.begin().await?;
    let copy = copy_order(&mut transaction, original).await?;
    transaction.commit().await?;
    stage.note(copy);
    judge(&stage).await
}

async fn woken_in_time(setup: Setup) -> Result<Option<Breach>> {
    let setup = setup.with("ORDERS_RELAY_POLL", "20s").with("ORDERS_RELAY_FULL_LOOK", "20s");
    let (stage, _vhost) = stage(setup).await?;
    for placed in 1..=4 {
        stage.order().await?;
        if applied(&stage, placed, Duration::from_secs(4)).await.is_err() {
            return Ok(Breach::new("I8", format!("order {placed} was not applied within 4 s")));
        }
    }
    judge(&stage).await
}
