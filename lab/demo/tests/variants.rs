//! Variants, and what they break that no experiment (`sabotages.rs`) looks for. The order service goes through the same fault,
//! which shows that the variant is the cause.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use std::time::Duration;

use anyhow::{Context as _, Result};
use demo::{
    lab::{CONDITION_DEADLINE, Setup, Stage},
    reconciliation::Kind,
};
use flaws::Flaw;
use serde_json::json;
use sqlx::PgPool;
use testbed::eventually;

/// How long the drill may take that the command line runs.
const DRILL_DEADLINE: Duration = Duration::from_secs(300);

async fn stage(amqp_url: &str, variant: Option<Flaw>) -> Result<Stage> {
    Stage::ready(amqp_url, Setup { variant: variant.map(Flaw::name), ..Setup::default() }).await
}

/// Places an order and waits until it is confirmed: what was published before has been applied by then.
async fn confirm_one_more(stage: &Stage) -> Result<()> {
    let id = stage.order().await?;
    eventually("a later order to be confirmed", CONDITION_DEADLINE, async || {
        Ok((stage.read(id).await?["status"] == "confirmed").then_some(()))
    })
    .await
}

#[tokio::test]
async fn publish_then_commit_charges_for_an_order_that_does_not_exist() -> Result<()> {
    for variant in [None, Some(Flaw::PublishThenCommit)] {
        let vhost = testbed::vhost().await?;
        let stage = stage(&vhost.url(), variant).await?;
        confirm_one_more(&stage).await?;
        // From now on new orders are refused, and nothing else: every other change leaves this state.
        let owner = PgPool::connect(&stage.database_url("orders")?).await?;
        sqlx::query("alter table orders add constraint closed check (status <> 'pending') not valid")
            .execute(&owner)
            .await?;
        let refused = stage.order().await;
        assert!(refused.is_err(), "{variant:?} has accepted an order that it could not write");
        sqlx::query("alter table orders drop constraint closed").execute(&owner).await?;
        confirm_one_more(&stage).await?;
        if variant.is_none() {
            stage.held().await?;
            continue;
        }
        let result = eventually("the customer to be charged", CONDITION_DEADLINE, async || {
            let result = stage.reconcile().await?;
            Ok((result.charges == result.orders + 1).then_some(result))
        })
        .await?;
        assert_eq!(result.acknowledged, result.orders);
        let has_one_phantom = |place: &str| {
            let mut phantoms = result.findings.iter().filter(|found| found.kind == Kind::Phantom);
            phantoms.any(|found| found.place == place && found.count == 1)
        };
        assert!(["inventory", "billing"].into_iter().all(has_one_phantom), "{:?}", result.findings);
    }
    Ok(())
}

/// A relay that publishes nothing would look like a slow one.
#[tokio::test]
async fn other_relays_publish_everything_while_nothing_fails() -> Result<()> {
    for variant in [
        Flaw::PollOneByOne,
        Flaw::RowLocks,
        Flaw::DeleteOncePublished,
        Flaw::TriggerNotify,
        Flaw::ListenAlone,
    ] {
        let vhost = testbed::vhost().await?;
        let stage = stage(&vhost.url(), Some(variant)).await?;
        confirm_one_more(&stage).await.context(variant.name())?;
        for _ in 0..10 {
            stage.order().await?;
        }
        let result = stage.held().await.context(variant.name())?;
        assert_eq!(result.acknowledged, result.confirmed, "{}: {result:?}", variant.name());
        let (rows, pending): (i64, i64) = sqlx::query_as(
            "select count(*), count(*) filter (where published_at is null) from orders.outbox
             where event_type = 'OrderCreated'",
        )
        .fetch_one(&stage.auditor)
        .await?;
        let kept = if variant == Flaw::DeleteOncePublished { 0 } else { result.orders };
        assert_eq!((u64::try_from(rows)?, pending), (kept, 0), "{}", variant.name());
    }
    Ok(())
}

/// The same on the command line.
#[tokio::test]
async fn drill_with_dual_write_is_broken_and_names_the_lost_orders() -> Result<()> {
    // The drill uses the same kind of servers as the other tests, and installs nothing.
    let with = std::env::var("TESTBED_WITH").map_or(vec![], |with| vec!["--with".to_owned(), with]);
    let run = tokio::process::Command::new(env!("CARGO_BIN_EXE_demo"))
        .args(with)
        .args(["--json", "--no-install", "drill", "broker-kill", "--variant", "dual-write"])
        .args(["--rate", "20", "--outage", "2s"])
        .kill_on_drop(true)
        .output();
    let run = tokio::time::timeout(DRILL_DEADLINE, run).await??;
    let output = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{output}");
    let document: serde_json::Value = serde_json::from_slice(&run.stdout)?;
    assert_eq!(document["report"]["verdict"], json!("broken"), "{output}");
    let findings = document["report"]["reconciliation"]["findings"].as_array().unwrap();
    let lost =
        findings.iter().find(|found| found["place"] == "inventory" && found["kind"] == "missing").unwrap();
    assert_eq!(lost["count"], json!(lost["first"].as_array().unwrap().len()), "not all are named: {output}");
    // Inventory and billing both miss each of them: one lost order is counted once.
    let reason = document["report"]["reason"].as_str().unwrap();
    assert!(reason.starts_with(&format!("{} orders missing (", lost["count"])), "{reason}");
    assert!(output.contains(lost["first"][0].as_str().unwrap()), "{output}");
    Ok(())
}
