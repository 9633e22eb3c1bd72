//! Copies of events: in another order, with another content, and fifty thousand at once.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::time::sleep;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::lab::BrokerApi;
use crate::own_system::OwnSystem;

pub(in crate::drills) const REORDERED: Drill = Drill {
    name: "copies-reordered",
    group: Group::Data,
    teaches: "Deduplication by id needs no order and no window: the record is a row, and it is there or not.",
    question: "Every event comes again three times, shuffled. Which order is reserved or charged again?",
    claim: "Copies in any order change nothing.",
    outage: Duration::from_secs(4),
    system: Subject::Own(OwnSystem::default),
    run: |run| Box::pin(reordered(run)),
};

pub(in crate::drills) const OTHER_BODY: Drill = Drill {
    name: "same-id-other-body",
    group: Group::Data,
    teaches: "The id decides. An event is a fact: a second one with the same id and another content is a defect or an attack.",
    question: "An event comes again under the same id, with ten times the amount. What is charged?",
    claim: "A message with the id of an event that was applied changes nothing, whatever its body says.",
    outage: Duration::from_secs(4),
    system: Subject::Own(OwnSystem::default),
    run: |run| Box::pin(other_body(run)),
};

pub(in crate::drills) const BACKLOG: Drill = Drill {
    name: "consumer-behind",
    group: Group::Data,
    teaches: "A queue absorbs a slow consumer until it is full. Its depth and the age of its head are what to watch.",
    question: "50,000 messages wait for billing when it continues. How long until the last order is confirmed?",
    claim: "With 50,000 messages waiting, orders are accepted, billing works through all of them, and nothing is lost. \
            (Lasts longer than a minute.)",
    outage: Duration::from_secs(1),
    system: Subject::Own(OwnSystem::default),
    run: |run| Box::pin(backlog(run)),
};

const TAP: &str = "drill";
const COPIES: usize = 3;
/// How many messages are taken from the queue.
const MAX_MESSAGES: usize = 2_000;
/// How many messages have to wait for billing.
const BACKLOG_MESSAGES: u64 = 50_000;
/// A round publishes every event of the order service again.
const MAX_ROUNDS: usize = 400;
/// The statistics of the broker are five seconds old.
const STATISTICS_INTERVAL: Duration = Duration::from_secs(6);

fn api(run: &DrillRun<'_>) -> Result<BrokerApi> {
    BrokerApi::new(run.own()?.rabbitmq.api_url(), "shop")
}

async fn publish_again(api: &BrokerApi, message: &Value, payload: &str) -> Result<()> {
    let key = message["routing_key"].as_str().context("a message without a routing key")?;
    api.publish_as("shop.events", key, payload, &message["properties"]).await
}

async fn reordered(run: &DrillRun<'_>) -> Result<Report> {
    let api = api(run)?;
    api.declare_tap(TAP).await?;
    let load = run.steady().await;
    let messages = api.take(TAP, MAX_MESSAGES).await?;
    let mut copies: Vec<_> = messages.iter().flat_map(|message| [message; COPIES]).collect();
    fastrand::shuffle(&mut copies);
    run.phase("storm", format!("publishing {} events again, {COPIES} times each, shuffled", messages.len()));
    for message in &copies {
        publish_again(&api, message, message["payload"].as_str().context("no payload")?).await?;
    }
    let accepted = run.accepted_meanwhile().await;
    let summary = run.end(load).await?;
    let sent = Fact { what: format!("{} copies were published", copies.len()), observed: copies.len() > 100 };
    let mut report = run.report(vec![sent, accepted], summary, Refusals::BreakTheClaim).await?;
    require_drops(&mut report, copies.len() as u64);
    Ok(report)
}

async fn other_body(run: &DrillRun<'_>) -> Result<Report> {
    let api = api(run)?;
    api.declare_tap(TAP).await?;
    let load = run.steady().await;
    // What was published is applied before it comes again with another body.
    sleep(run.outage).await;
    let messages = api.take(TAP, MAX_MESSAGES / 4).await?;
    let mut forged = 0_u64;
    for message in messages.iter().filter(|message| message["routing_key"] == "order.created") {
        let payload = message["payload"].as_str().context("no payload")?;
        let mut event: Value = serde_json::from_str(payload)?;
        multiply(event.pointer_mut("/data/total/amount").context("an order without a total")?);
        let lines = event.pointer_mut("/data/lines").and_then(Value::as_array_mut);
        for line in lines.context("an order without lines")? {
            multiply(&mut line["quantity"]);
        }
        publish_again(&api, message, &event.to_string()).await?;
        forged += 1;
    }
    ensure!(forged > 0, "no creation was published");
    run.phase("forged", format!("published {forged} creations again, with ten times the quantity"));
    let accepted = run.accepted_meanwhile().await;
    let summary = run.end(load).await?;
    let sent = Fact { what: format!("{forged} forged messages were published"), observed: forged > 10 };
    let mut report = run.report(vec![sent, accepted], summary, Refusals::BreakTheClaim).await?;
    // Inventory and billing get each of them.
    require_drops(&mut report, forged);
    Ok(report)
}

/// The sum is still that of the lines: an event that contradicts itself would be set aside before its id is looked at.
fn multiply(number: &mut Value) {
    *number = Value::from(number.as_i64().unwrap_or_default() * 10);
}

async fn backlog(run: &DrillRun<'_>) -> Result<Report> {
    let (api, own) = (api(run)?, run.own()?);
    let load = run.steady().await;
    own.processes.pause("billing")?;
    run.phase("outage", "stopped billing with SIGSTOP; every event of orders is published again and again");
    let (mut depth, mut rounds) = (0, 0);
    while depth < BACKLOG_MESSAGES && rounds < MAX_ROUNDS {
        run.system.execute_as("orders", "update outbox set published_at = null").await?;
        rounds += 1;
        let pending = "select count(*)::text from orders.outbox where published_at is null";
        testbed::eventually("the events to be published again", Duration::from_secs(60), async || {
            let pending: u64 = run.system.read(pending).await?.trim().parse()?;
            Ok((pending < 500).then_some(()))
        })
        .await?;
        if rounds % 8 == 0 {
            sleep(STATISTICS_INTERVAL).await;
        }
        depth = api.depth("billing.events").await.unwrap_or(depth);
    }
    own.processes.resume("billing")?;
    run.phase("resume", format!("{depth} messages wait for billing, which continues"));
    let accepted = run.accepted_meanwhile().await;
    let summary = run.end(load).await?;
    let waited =
        Fact { what: format!("{depth} messages waited for billing"), observed: depth >= BACKLOG_MESSAGES };
    run.report(vec![waited, accepted], summary, Refusals::BreakTheClaim).await
}

fn require_drops(report: &mut Report, at_least: u64) {
    let dropped = report.duplicates_dropped.known();
    report.require(Fact {
        what: format!("{dropped} copies were recognised and dropped"),
        observed: dropped >= at_least,
    });
}
