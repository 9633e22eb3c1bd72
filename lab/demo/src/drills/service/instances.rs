//! More than one instance, and a relay that no wake-up reaches.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sqlx::{Connection as _, PgConnection};
use testbed::eventually;
use tokio::time::sleep;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::lab::{CONDITION_DEADLINE, experiments::copy_order};
use crate::own_system::OwnSystem;

pub(in crate::drills) const SCALE: Drill = Drill {
    name: "scale-out-and-in",
    group: Group::Service,
    teaches: "Relays divide the lanes among themselves by locks in the database. No instance knows of another.",
    question: "Four order services run where one did, and then one again. Who decides which relay publishes what?",
    claim: "From one instance to four and back, events of an order are published in order, and none is lost.",
    outage: Duration::from_secs(5),
    system: Subject::Own(|| {
        let mut own = OwnSystem::default();
        own.setup.instances.orders = 4;
        own
    }),
    run: |run| Box::pin(scale(run)),
};

pub(in crate::drills) const NO_WAKE_UP: Drill = Drill {
    name: "no-wake-up",
    group: Group::Service,
    teaches: "A wake-up makes the relay fast, and may be lost. The poll makes it correct.",
    question: "Another program writes orders with their events, and notifies no relay. When are they published?",
    claim: "Events that no wake-up announces are found by the poll, and arrive once.",
    outage: Duration::ZERO,
    system: Subject::Own(OwnSystem::default),
    run: |run| Box::pin(write_silently(run)),
};

const OTHERS: [&str; 3] = ["orders-2", "orders-3", "orders-4"];
/// The relay polls each second. Much later it would find the events all the same: it listens anew after half a minute.
const FOUND_WITHIN: Duration = Duration::from_secs(15);
/// How many orders are written without a wake-up.
const SILENT: usize = 20;

async fn scale(run: &DrillRun<'_>) -> Result<Report> {
    let processes = &run.own()?.processes;
    for name in OTHERS {
        processes.terminate(name).await?;
    }
    let load = run.steady().await;
    for name in OTHERS {
        processes.start_again(name).await?;
    }
    processes.wait_ready(CONDITION_DEADLINE).await?;
    run.phase("four", "three more order services run");
    let published = async |name: &str| -> Result<f64> {
        let page = crate::http::get(&format!("{}/metrics", processes.url(name)?)).await?;
        Ok(crate::metrics::sum(&page, "outbox_published_total")?)
    };
    let shared = run
        .felt("another instance publishes too", async || {
            let mut others = 0.0;
            for name in OTHERS {
                others += published(name).await?;
            }
            Ok((others > 0.0).then(|| format!("the other instances have published {others} events")))
        })
        .await;
    sleep(run.outage).await;
    let mut facts = vec![shared];
    for name in OTHERS {
        let code = processes.terminate(name).await?;
        facts.push(Fact { what: format!("{name} was stopped with exit code 0"), observed: code == Some(0) });
    }
    run.phase("one", "one order service runs");
    sleep(run.outage).await;
    let summary = run.end(load).await?;
    run.report(facts, summary, Refusals::BreakTheClaim).await
}

async fn write_silently(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    let summary = load.stop().await?;
    // Nothing else is published from here on, so that nothing else wakes a relay.
    let settled = run.settled().await?;
    ensure!(settled.in_progress() == 0, "the orders of the load did not end: {}", settled.progress());
    let mut writer = PgConnection::connect(run.own()?.orders_database()).await?;
    let original = run.system.read("select id::text from orders.orders order by placed_at limit 1").await?;
    let original = original.trim().parse().context("there is no order to copy")?;
    let mut transaction = writer.begin().await?;
    for _ in 0..SILENT {
        run.acknowledge(copy_order(&mut transaction, original).await?);
    }
    transaction.commit().await?;
    run.phase("silence", format!("another program wrote {SILENT} orders, and notified no relay"));
    let pending = "select count(*)::text from orders.outbox where published_at is null";
    let left = run.system.read(pending).await?;
    let waited = Fact {
        what: format!("{} of their events waited for the poll", left.trim()),
        observed: left.trim() != "0",
    };
    let polled = eventually("the events to be found by the poll", FOUND_WITHIN, async || {
        Ok((run.system.read(pending).await?.trim() == "0").then_some(()))
    })
    .await;
    let mut report = run.report(vec![waited], summary, Refusals::BreakTheClaim).await?;
    if let Err(error) = polled {
        report.refute(format!("{error:#}"));
    }
    Ok(report)
}
