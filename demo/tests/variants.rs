//! The order written as it is often written, and what becomes of it. Each time the real service goes through the same, so that
//! the fault is known to be the variant's.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use demo::{
    Variant,
    audit::{Audit, Kind},
    lab::{PATIENCE, Setup, Stage},
};
use load_tests::Saturation;
use serde_json::json;
use sqlx::PgPool;
use testbed::eventually;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

async fn stage(amqp_url: &str, variant: Option<Variant>) -> Result<Stage> {
    Stage::ready(amqp_url, Setup { variant, ..Setup::default() }).await
}

/// A way to the broker that can be closed: then it ends whoever is on it, and lets nobody in.
async fn way_to(amqp_url: &str) -> Result<(String, watch::Sender<bool>)> {
    let (credentials, rest) = amqp_url.rsplit_once('@').context("no credentials")?;
    let (broker, vhost) = rest.split_once('/').context("no virtual host")?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let (away, is_away) = watch::channel(false);
    let broker = broker.to_owned();
    tokio::spawn(async move {
        while let Ok((mut here, _)) = listener.accept().await {
            let (broker, mut is_away) = (broker.clone(), is_away.clone());
            tokio::spawn(async move {
                let Ok(mut there) = TcpStream::connect(broker).await else { return };
                tokio::select! {
                    _ = is_away.wait_for(|away| *away) => {}
                    _ = copy_bidirectional(&mut here, &mut there) => {}
                }
            });
        }
    });
    Ok((format!("{credentials}@{address}/{vhost}"), away))
}

/// Orders with the fault gone, until one of them is through to its end: whatever was to be heard of the ones before has been
/// heard. A variant may lose some of these as well, while the broker is on its way back.
async fn one_more(stage: &Stage) -> Result<()> {
    eventually("a later order to be confirmed", PATIENCE, async || {
        let id = stage.order().await?;
        let confirmed = eventually("this one", Duration::from_secs(5), async || {
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

/// Ids that are wrong in this way at this place.
fn named<'a>(audit: &'a Audit, kind: Kind, place: &str) -> Vec<&'a String> {
    let mut ids: Vec<_> = audit
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
async fn committed_and_then_published_is_lost_with_the_broker_and_the_lost_order_is_named() -> Result<()> {
    for variant in [None, Some(Variant::DualWrite)] {
        let vhost = testbed::vhost().await?;
        let (amqp_url, away) = way_to(&vhost.url()).await?;
        let stage = stage(&amqp_url, variant).await?;
        one_more(&stage).await?;
        away.send_replace(true);
        let during = stage.order().await?;
        away.send_replace(false);
        one_more(&stage).await?;
        if variant.is_none() {
            stage.held().await?;
            continue;
        }
        eventually("the lost ones to be all that is open", PATIENCE, async || {
            let audit = stage.audit().await?;
            let lost = named(&audit, Kind::Missing, "inventory");
            ensure!(lost.contains(&&during.to_string()), "{:?}", audit.findings);
            ensure!(lost == named(&audit, Kind::Missing, "billing"), "{:?}", audit.findings);
            ensure!(
                (audit.open, audit.acknowledged) == (lost.len() as u64, audit.confirmed + audit.open),
                "{audit:?}"
            );
            Ok(Some(()))
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn published_and_then_not_committed_is_charged_for_an_order_that_does_not_exist() -> Result<()> {
    for variant in [None, Some(Variant::PublishThenCommit)] {
        let vhost = testbed::vhost().await?;
        let stage = stage(&vhost.url(), variant).await?;
        one_more(&stage).await?;
        // Nothing but new orders is refused from now on: every other change leaves this state.
        let owner = PgPool::connect(&stage.database_url("orders")?).await?;
        sqlx::query("alter table orders add constraint closed check (status <> 'pending') not valid")
            .execute(&owner)
            .await?;
        let refused = stage.order().await;
        assert!(refused.is_err(), "{variant:?} has accepted what it could not write");
        sqlx::query("alter table orders drop constraint closed").execute(&owner).await?;
        one_more(&stage).await?;
        if variant.is_none() {
            stage.held().await?;
            continue;
        }
        let audit = eventually("the customer to be charged all the same", PATIENCE, async || {
            let audit = stage.audit().await?;
            Ok((audit.charges == audit.orders + 1).then_some(audit))
        })
        .await?;
        assert_eq!(audit.acknowledged, audit.orders);
        for place in ["inventory", "billing"] {
            assert_eq!(named(&audit, Kind::Phantom, place).len(), 1, "{:?}", audit.findings);
        }
    }
    Ok(())
}

#[tokio::test]
async fn notifying_in_the_orders_transaction_loses_nothing_and_has_commits_queue_up() -> Result<()> {
    for variant in [None, Some(Variant::NotifyInTransaction)] {
        let vhost = testbed::vhost().await?;
        let stage = stage(&vhost.url(), variant).await?;
        let url = stage.system.orders_url();
        let crowd = Saturation { url, connections: 32, for_: Duration::from_secs(3), seed: 1 };
        let load = tokio::spawn(load_tests::saturate(crowd, |_| {}));
        let mut longest = 0;
        while !load.is_finished() {
            // In this database: other tests have sessions of their own on this server.
            let queue: i64 = sqlx::query_scalar(
                "select count(*) from pg_locks l join pg_stat_activity a using (pid)
                 where not l.granted and l.locktype = 'object' and l.database = 0
                   and l.classid = 'pg_database'::regclass and a.datname = current_database()",
            )
            .fetch_one(&stage.auditor)
            .await?;
            longest = longest.max(queue);
        }
        let summary = load.await??;
        ensure!(summary.accepted > 32, "{summary:?}");
        match variant {
            None => assert!(longest <= 3, "{longest} sessions of the real service queue up"),
            Some(_) => assert!(longest >= 8, "{longest} sessions are no queue"),
        }
        one_more(&stage).await?;
        stage.held().await?;
    }
    Ok(())
}

/// The same by the command line, as a reader would.
#[tokio::test]
async fn a_drill_with_a_variant_is_broken_and_names_what_was_lost() -> Result<()> {
    // Where the other tests' servers are, and never an installation in the middle of a test.
    let place = std::env::var("TESTBED_WITH").map_or(vec![], |with| vec!["--with".to_owned(), with]);
    let run = tokio::process::Command::new(env!("CARGO_BIN_EXE_demo"))
        .args(place)
        .args(["--json", "--no-install", "drill", "broker-kill", "--variant", "dual-write"])
        .args(["--rate", "20", "--outage", "2s"])
        .kill_on_drop(true)
        .output();
    let run = tokio::time::timeout(Duration::from_secs(300), run).await??;
    let words = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{words}");
    let document: serde_json::Value = serde_json::from_slice(&run.stdout)?;
    assert_eq!(document["report"]["verdict"], json!("broken"), "{words}");
    let findings = document["report"]["audit"]["findings"].as_array().unwrap();
    let lost =
        findings.iter().find(|found| found["place"] == "inventory" && found["kind"] == "missing").unwrap();
    assert_eq!(lost["count"], json!(lost["first"].as_array().unwrap().len()), "not all are named: {words}");
    assert!(words.contains(lost["first"][0].as_str().unwrap()), "{words}");
    Ok(())
}
