//! Variants of the order write, and what they break. The order service goes through the same faults, which shows that
//! the variant is the cause.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use demo::{
    lab::{CONDITION_DEADLINE, PROXY_ROUTE, Setup, Stage, proxied},
    reconciliation::{Kind, Reconciliation},
};
use fault_proxy::{Direction, Effect, Fault, MAX_FAULT_DURATION};
use flaws::Flaw;
use load_tests::Saturation;
use serde_json::json;
use sqlx::PgPool;
use testbed::eventually;

/// How long the drill may take that the command line runs.
const DRILL_DEADLINE: Duration = Duration::from_secs(300);

async fn stage(amqp_url: &str, variant: Option<Flaw>) -> Result<Stage> {
    Stage::ready(amqp_url, Setup { variant, ..Setup::default() }).await
}

/// How long one of several orders may take to be confirmed.
const CONFIRM_DEADLINE: Duration = Duration::from_secs(5);

/// Places orders after a fault until one of them is confirmed: what was published before has been applied by then. A
/// variant may lose some of these too, while it connects to the broker again.
async fn confirm_one_more(stage: &Stage) -> Result<()> {
    eventually("a later order to be confirmed", CONDITION_DEADLINE, async || {
        let id = stage.order().await?;
        let confirmed = eventually("this order to be confirmed", CONFIRM_DEADLINE, async || {
            let confirmed: bool = sqlx::query_scalar(
                "select exists (select from orders.orders where id = $1 and status = 'confirmed')",
            )
            .bind(id)
            .fetch_one(&stage.auditor)
            .await?;
            Ok(confirmed.then_some(()))
        });
        Ok(confirmed.await.ok())
    })
    .await
}

/// The ids of the findings of a kind at a place.
fn named<'a>(result: &'a Reconciliation, kind: Kind, place: &str) -> Vec<&'a String> {
    let mut ids: Vec<_> = result
        .findings
        .iter()
        .filter(|found| found.kind == kind && found.place == place)
        .flat_map(|found| &found.first)
        .collect();
    ids.sort();
    ids.dedup();
    ids
}

#[tokio::test]
async fn dual_write_loses_orders_without_a_broker_and_the_reconciliation_names_them() -> Result<()> {
    for variant in [None, Some(Flaw::DualWrite)] {
        let vhost = testbed::vhost().await?;
        let (proxy, amqp_url) = proxied(&vhost.url()).await?;
        let stage = stage(&amqp_url, variant).await?;
        confirm_one_more(&stage).await?;
        proxy.set(PROXY_ROUTE, Fault::new(Effect::Cut, Direction::Both, MAX_FAULT_DURATION))?;
        let during = stage.order().await?;
        proxy.clear(PROXY_ROUTE)?;
        confirm_one_more(&stage).await?;
        if variant.is_none() {
            stage.held().await?;
            continue;
        }
        eventually("the lost orders to be the only open ones", CONDITION_DEADLINE, async || {
            let result = stage.reconcile().await?;
            let lost = named(&result, Kind::Missing, "inventory");
            ensure!(lost.contains(&&during.to_string()), "{:?}", result.findings);
            ensure!(lost == named(&result, Kind::Missing, "billing"), "{:?}", result.findings);
            ensure!(
                (result.open, result.acknowledged) == (lost.len() as u64, result.confirmed + result.open),
                "{result:?}"
            );
            Ok(Some(()))
        })
        .await?;
    }
    Ok(())
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
        for place in ["inventory", "billing"] {
            assert_eq!(named(&result, Kind::Phantom, place).len(), 1, "{:?}", result.findings);
        }
    }
    Ok(())
}

#[tokio::test]
async fn notify_in_transaction_loses_nothing_but_commits_queue_up() -> Result<()> {
    for variant in [None, Some(Flaw::NotifyInTransaction)] {
        let vhost = testbed::vhost().await?;
        let stage = stage(&vhost.url(), variant).await?;
        let url = stage.system.orders_url();
        // On a busy machine it takes longer until many commits meet.
        let for_ = if variant.is_some() { CONDITION_DEADLINE } else { Duration::from_secs(3) };
        let load = Saturation { url, connections: 32, for_, seed: 1 };
        let load = tokio::spawn(load_tests::saturate(load, |_| {}));
        let mut longest = 0;
        while !load.is_finished() && (variant.is_none() || longest < 8) {
            // In this database only: other tests use the same server.
            let queue: i64 = sqlx::query_scalar(
                "select count(*) from pg_locks l join pg_stat_activity a using (pid)
                 where not l.granted and l.locktype = 'object' and l.database = 0
                   and l.classid = 'pg_database'::regclass and a.datname = current_database()",
            )
            .fetch_one(&stage.auditor)
            .await?;
            longest = longest.max(queue);
        }
        if variant.is_some() {
            assert!(longest >= 8, "only {longest} sessions queue up");
            load.abort();
        } else {
            let summary = load.await??;
            ensure!(summary.accepted > 32, "{summary:?}");
            assert!(longest <= 3, "{longest} sessions of the order service queue up");
        }
        confirm_one_more(&stage).await?;
        stage.held().await?;
    }
    Ok(())
}

/// `load-tests baselines` measures them. A relay that publishes nothing would look like a slow one.
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
