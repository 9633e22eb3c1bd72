//! What a consumer may not do: say "done" too early, remember apart from the effect, or give back what nobody can apply.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use testbed::eventually;

use crate::audit::Kind;

use super::{
    super::PATIENCE,
    Breach, Experiment, Setup,
    judge::judge,
    stage,
    strike::{Once, applied, gone},
};

pub(super) static EXPERIMENTS: [Experiment; 6] = [
    Experiment {
        name: "ack-before-commit",
        invariants: &["I3"],
        fault: "a consumer is killed before its commit",
        run: |setup| Box::pin(killed_at(setup, "effect-written:kill")),
    },
    Experiment {
        name: "dedupe-outside-transaction",
        invariants: &["I3"],
        fault: "a consumer is killed between \"processed\" and the effect",
        run: |setup| Box::pin(killed_at(setup, "inbox-recorded:kill")),
    },
    Experiment {
        name: "short-memory",
        invariants: &["I4"],
        fault: "everything is published again, a few seconds later",
        run: |setup| Box::pin(published_again(setup)),
    },
    Experiment {
        name: "nack-for-poison",
        invariants: &["I11"],
        fault: "a message that can never be applied",
        run: |setup| Box::pin(poison(setup)),
    },
    Experiment {
        name: "crash-loop-without-dead-letters",
        invariants: &["I3"],
        fault: "inventory is killed 24 times with everything in hand",
        run: |setup| Box::pin(crash_loop(setup)),
    },
    Experiment {
        name: "charge-without-key",
        invariants: &["I4"],
        fault: "billing is killed between the provider's answer and its own commit",
        run: |setup| Box::pin(killed_at(setup, "payment-answered:kill")),
    },
];

async fn killed_at(setup: Setup, point: &str) -> Result<Option<Breach>> {
    let once = Once::new();
    let (stage, _vhost) = stage(setup.striking(point, once.path())).await?;
    stage.order().await?;
    once.struck().await?;
    eventually("a consumer to be gone", PATIENCE, async || {
        let system = &stage.system;
        Ok((system.pid("inventory").is_none() || system.pid("billing").is_none()).then_some(()))
    })
    .await?;
    stage.revive().await?;
    stage.order().await?;
    judge(&stage).await
}

async fn published_again(setup: Setup) -> Result<Option<Breach>> {
    let (stage, _vhost) = stage(setup).await?;
    for _ in 0..5 {
        stage.order().await?;
    }
    stage.held().await?;
    // Who remembers keeps all of it.
    let _ = eventually("the memory to be empty", Duration::from_secs(5), async || {
        let remembered = "select count(*) from inventory.processed_events";
        let remembered: i64 = sqlx::query_scalar(remembered).fetch_one(&stage.auditor).await?;
        Ok((remembered == 0).then_some(()))
    })
    .await;
    let mut orders = PgConnection::connect(&stage.database_url("orders")?).await?;
    sqlx::query("update outbox set published_at = null").execute(&mut orders).await?;
    sqlx::query("select outbox_wake()").execute(&mut orders).await?;
    eventually("all of it to be published again", PATIENCE, async || {
        Ok((stage.audit().await?.owed == 0).then_some(()))
    })
    .await?;
    // The sixth order comes after the copies: when it is applied, they have been dealt with.
    stage.order().await?;
    applied(&stage, 6, PATIENCE).await?;
    judge(&stage).await
}

async fn poison(setup: Setup) -> Result<Option<Breach>> {
    let (stage, vhost) = stage(setup).await?;
    stage.order().await?;
    stage.held().await?;
    let message = json!({
        "routing_key": "inventory.events", "payload": "not json", "payload_encoding": "string",
        "properties": { "message_id": "poison", "delivery_mode": 2 },
    });
    let url = format!("{}/api/exchanges/{}/amq.default/publish", vhost.api_url(), vhost.name());
    let answer = stage.client.post(url).json(&message).send().await?;
    ensure!(answer.status().is_success(), "the poison was not taken: {}", answer.status());
    for _ in 0..5 {
        stage.order().await?;
    }
    let aside =
        eventually("the poison to be set aside with its reason", Duration::from_secs(12), async || {
            let counted =
                stage.counter("inventory", "inbox_dead_lettered_total{reason=\"malformed\"}").await?;
            Ok((counted >= 1.0).then_some(()))
        });
    if aside.await.is_err() {
        return Ok(Breach::new("I11", "a bad message was not set aside with its reason within 12 s"));
    }
    judge(&stage).await
}

/// The group is received and nothing has begun: each time the process dies with all that it holds.
async fn crash_loop(setup: Setup) -> Result<Option<Breach>> {
    let once = Once::new();
    once.disarm()?;
    let (stage, _vhost) = stage(setup.striking("group-received:kill", once.path())).await?;
    stage.order().await?;
    applied(&stage, 1, PATIENCE).await?;
    stage.system.kill("inventory").await?;
    for _ in 0..40 {
        stage.order().await?;
    }
    eventually("everybody else to be done, so that the strikes are inventory's", PATIENCE, async || {
        let audit = stage.audit().await?;
        let quiet = audit.owed + audit.payments_owed + audit.count(Kind::Missing, "billing") == 0;
        Ok((audit.in_billing >= 41 && quiet).then_some(()))
    })
    .await?;
    for _ in 0..24 {
        once.arm()?;
        stage.system.start_again("inventory").await?;
        // The last ones may find nothing left to die of.
        let struck =
            eventually("a strike", Duration::from_secs(3), async || Ok(once.path().exists().then_some(())));
        if struck.await.is_err() {
            once.disarm()?;
            break;
        }
        gone(&stage, "inventory").await?;
    }
    stage.revive().await?;
    let found = judge(&stage).await?;
    // Whoever was in hand at every crash is set aside. Its neighbours were not to blame.
    let aside = stage.audit().await?.set_aside(false);
    if found.is_none() && aside > 2 {
        return Ok(Breach::new("I11", format!("{aside} messages are set aside")));
    }
    Ok(found)
}
