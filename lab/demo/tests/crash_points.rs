//! Every crash point, three ways each: the process is killed, frozen and continued, or asked to stop. The promises hold,
//! events are published in order, and again only after a kill or a freeze, once.
//!
//! `CRASH_CASE=relay-claimed:kill` runs one of them.

#![allow(clippy::print_stdout, reason = "the list of what was tried is part of the result")]

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use demo::RunningSystem;
use demo::lab::{CrashFile, Setup, Tap, resume_process};
use demo::reconciliation::{Kind, Reconciliation};
use futures_util::{StreamExt as _, stream};
use testbed::{Postgres, fewer};

/// Each runs a system of four processes, which mostly waits. Fewer on a slow machine.
const AT_A_TIME: u32 = 4;

#[tokio::test]
async fn a_crash_at_any_point_loses_nothing_and_doubles_nothing() -> Result<()> {
    crash_at_each(&messaging::crash_points::ALL, None).await
}

#[tokio::test]
async fn a_crash_at_any_point_of_a_relay_that_reads_the_log_loses_nothing_and_doubles_nothing() -> Result<()>
{
    let server = Postgres::private().await?;
    let slots = [("max_replication_slots", "50"), ("max_wal_senders", "50")];
    server.set(&[&[("wal_level", "logical")], &slots[..]].concat()).await?;
    crash_at_each(&["relay-claimed", "relay-confirmed", "relay-committed"], Some(&server)).await
}

/// With relays that read the log, on a server whose log can be decoded.
async fn crash_at_each(points: &[&'static str], log: Option<&Postgres>) -> Result<()> {
    let chosen = std::env::var("CRASH_CASE").ok();
    let all = points.iter().flat_map(|point| ["kill", "freeze", "stop"].map(|action| (*point, action)));
    let all: Vec<_> = all
        .filter(|(point, action)| chosen.as_ref().is_none_or(|case| *case == format!("{point}:{action}")))
        .collect();
    let count = all.len();
    // Those of a relay that reads the log are a part of all.
    ensure!(count > 0 || log.is_some(), "there is no such case");
    let broken: Vec<_> = stream::iter(all)
        .map(async |(point, action)| {
            let result = crash_at(point, action, log).await;
            match &result {
                Ok(copies) => println!("{point:<20} {action:<7} held, {copies} copies published"),
                Err(error) => println!("{point:<20} {action:<7} BROKEN: {error:#}"),
            }
            result.err().map(|error| format!("{point} {action}: {error:#}"))
        })
        .buffer_unordered(fewer(AT_A_TIME) as usize)
        .filter_map(async |broken| broken)
        .collect()
        .await;
    ensure!(broken.is_empty(), "{} of {count} broken:\n{}", broken.len(), broken.join("\n"));
    Ok(())
}

/// Lets one process crash at `point` while orders are placed, restores it, and audits. Returns how many events were
/// published again.
async fn crash_at(point: &str, action: &str, log: Option<&Postgres>) -> Result<u64> {
    let once = CrashFile::new();
    let mut setup = Setup::default().crashing_at(format!("{point}:{action}"), once.path());
    let database = match log {
        None => testbed::database().await?,
        Some(server) => {
            let database = testbed::database_on(&server.admin_url("postgres")).await?;
            testbed::allow_log_relay(&database.admin_url()).await?;
            let services = ["ORDERS_RELAY", "INVENTORY_RELAY", "BILLING_RELAY"];
            setup = services.into_iter().fold(setup, |setup, relay| setup.with(relay, "log"));
            database
        }
    };
    let system = RunningSystem::on(database, setup).await?;
    let mut tap = Tap::on(system.broker_api()?).await?;
    // A message that can never be applied.
    let api = system.broker_api()?;
    match point {
        "dead-letter-saved" => api.publish("inventory.events", "not json", "poison").await?,
        "dead-letter-collected" => api.publish("inventory.events.dead", "not json", "poison").await?,
        _ => {}
    }
    // A frozen process answers only after it is continued: the orders wait for that.
    let (placed, restored) = tokio::join!(place(&system, &once), restore(&system, &once, action));
    placed?;
    restored?;
    system.revive().await?;
    // And it works again.
    system.cancel(system.order().await?).await?;
    system.held().await?;
    let published = tap.drain().await?;
    ensure!(published.out_of_order.is_empty(), "published out of order: {:?}", published.out_of_order);
    // What a relay has published and not marked is published once more. One that is asked to stop marks it first. Nearly always
    // a frozen one does too; but its deadlines go on, so where the machine stalls, it may see no confirm in time.
    let most_copies = u64::from(action != "stop");
    ensure!(
        published.most_copies <= most_copies,
        "an event was published {} more times",
        published.most_copies
    );
    ensure!(published.messages > published.copies, "the tap has received nothing");
    Ok(published.copies)
}

/// Places many orders at once, so that batches and groups hold more than one, and cancels some, until the crash. Orders that
/// it cuts off were not acknowledged.
async fn place(system: &RunningSystem, once: &CrashFile) -> Result<()> {
    let provoked = once.provoke(async || {
        let placing = stream::iter(0..40).map(|_| system.order_once()).buffer_unordered(20);
        let accepted: Vec<_> = placing.filter_map(async |placed| placed.ok()).collect().await;
        ensure!(!accepted.is_empty(), "no order was accepted");
        for id in accepted.iter().take(5) {
            system.cancel_once(*id).await?;
        }
        Ok(())
    });
    provoked.await.map(drop).with_context(|| system.was_answered())
}

/// Waits for the crash, and continues a frozen process; one that is gone is started again later.
async fn restore(system: &RunningSystem, once: &CrashFile, action: &str) -> Result<()> {
    if action == "freeze" {
        resume_process(once.frozen().await?)
    } else {
        system.ended(once.process().await?).await
    }
}

/// Each time, inventory dies after it has received a group and before it has begun a transaction.
#[tokio::test]
async fn event_that_crashes_its_consumer_again_and_again_is_set_aside_alone() -> Result<()> {
    let once = CrashFile::new();
    once.disarm()?;
    let setup = Setup::default().crashing_at("group-received:kill", once.path());
    let system = RunningSystem::shared(setup).await?;
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
    system.held().await?;
    // All the others were held together with it at each crash.
    let aside = system.reconcile_acknowledged().await?.waiting_for_operator();
    ensure!(aside == 1, "{aside} messages are set aside");
    Ok(())
}

/// The lab programs can arm crash points and get steps of the pattern wrong; the product's programs can do neither.
#[tokio::test]
async fn product_binaries_cannot_arm_crash_points() -> Result<()> {
    testbed::build_lab(false).await?;
    for service in ["orders", "inventory", "billing"] {
        let product = std::fs::read(testbed::find_service(service)?)?;
        let lab = std::fs::read(testbed::find_service(&format!("{service}-lab"))?)?;
        let holds =
            |binary: &[u8], text: &str| binary.windows(text.len()).any(|part| part == text.as_bytes());
        for text in ["CRASH_POINT", "CRASH_ONCE", "SABOTAGE"] {
            ensure!(holds(&lab, text), "{service}-lab does not contain {text:?}: this test proves nothing");
            ensure!(!holds(&product, text), "{service} contains {text:?}");
        }
        for flaw in &flaws::ALL {
            ensure!(!holds(&product, flaw.name), "{service} contains {:?}", flaw.name);
        }
    }
    Ok(())
}

/// The list of crash points is the list of the calls in the product's sources.
#[test]
fn the_list_of_crash_points_is_complete() -> Result<()> {
    let root = testbed::workspace_root().context("a checkout")?;
    let mut found = vec![];
    for folder in ["services", "shared"] {
        calls_below(&root.join(folder), &mut found)?;
    }
    found.sort_unstable();
    found.dedup();
    let mut known: Vec<_> = messaging::crash_points::ALL.map(str::to_owned).to_vec();
    known.sort_unstable();
    ensure!(found == known, "called: {found:?}; listed: {known:?}");
    Ok(())
}

fn calls_below(folder: &Path, found: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            calls_below(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = std::fs::read_to_string(&path)?;
            let calls = source.split("crash_point(\"").skip(1);
            found.extend(calls.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
    }
    Ok(())
}
