//! Messages that should not exist, copies of events, and what was set aside.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::drill::{Drill, Group, Subject};
use super::drill_run::DrillRun;
use super::felt::{Felt, Figure::Metric, Limit::Count};
use crate::fault::{Fault, publish_copy};
use crate::lab::foreign_event;
use crate::own_system::OwnSystem;
use crate::set_aside::{GIVEN_UP, count_reasons, count_waiting, discard_all, publish_again, replay_all};

pub(super) static DRILLS: [Drill; 5] = [
    Drill {
        name: "poison",
        teaches: "A message that can never be applied must leave the queue, with its bytes and the reason, or it \
                  blocks it.",
        question: "One message in a hundred is not JSON, of an unknown type, about two things at once, or about an \
                   order that does not exist. What happens to the ninety-nine?",
        claim: "Bad messages are set aside with their reason and bytes, and every good one is applied meanwhile.",
        outage: Duration::from_secs(15),
        steps: Some(|run| Box::pin(send_poison(run))),
        ..ROW
    },
    Drill {
        name: "copies-reordered",
        teaches: "Deduplication by id needs no order and no window: the record is a row, and it is there or not.",
        question: "Every event comes again three times, shuffled. Which order is reserved or charged again?",
        claim: "Copies in any order change nothing.",
        steps: Some(|run| Box::pin(publish_reordered(run))),
        ..ROW
    },
    Drill {
        name: "same-id-other-body",
        teaches: "The id decides. An event is a fact: a second one with the same id and another content is a defect or \
                  an attack.",
        question: "An event comes again under the same id, with ten times the amount. What is charged?",
        claim: "A message with the id of an event that was applied changes nothing, whatever its body says.",
        steps: Some(|run| Box::pin(publish_other_bodies(run))),
        ..ROW
    },
    Drill {
        name: "consumer-behind",
        teaches: "A queue absorbs a slow consumer until it is full. Its depth and the age of its head are what to \
                  watch.",
        question: "50,000 messages wait for billing when it continues. How long until the last order is confirmed?",
        claim: "With 50,000 messages waiting, orders are accepted, billing works through all of them, and nothing is \
                lost. (Lasts longer than a minute.)",
        outage: Duration::from_secs(1),
        steps: Some(|run| Box::pin(fall_behind(run))),
        ..ROW
    },
    Drill {
        name: "replayed-twice",
        teaches: "A replay goes through the same deduplication as a delivery, so an operator who is unsure may repeat \
                  it.",
        question: "A defect makes one order in a hundred fail. It is repaired, everything is replayed, twice, and then \
                   the same events are published again. What happens the second and the third time?",
        claim: "A replay applies what was set aside, once. A second replay finds nothing to do, and copies change \
                nothing.",
        outage: Duration::from_secs(8),
        steps: Some(|run| Box::pin(replay_twice(run))),
        ..ROW
    },
];

const ROW: Drill = Drill {
    group: Group::Data,
    outage: Duration::from_secs(4),
    system: Subject::Own(OwnSystem::default),
    ..Drill::ROW
};

/// Each kind of bad message goes to each queue once.
const LEAST: usize = KINDS * QUEUES.len();
const KINDS: usize = 3;
const QUEUES: [&str; 3] = ["orders.events", "inventory.events", "billing.events"];

const TAP: &str = "drill";
const COPIES: usize = 3;
/// How many messages are taken from the queue.
const MAX_MESSAGES: usize = 2_000;

/// How many messages must wait for billing.
const BACKLOG_MESSAGES: u64 = 50_000;
/// A round publishes every event of the order service again.
const MAX_ROUNDS: usize = 400;
/// The statistics of the broker are five seconds old.
const STATISTICS_INTERVAL: Duration = Duration::from_secs(6);

/// The first events of the orders that the defect is about.
const REFUSED: &str = "
    select coalesce(json_agg(event_id), '[]')::text from orders.outbox
    where aggregate_version = 1 and abs(hashtext(aggregate_id::text)) % 100 = 0";
/// When the operator begins to doubt. The records of what was applied must last longer.
const DOUBT: Duration = Duration::from_secs(3);

async fn send_poison(run: &DrillRun<'_>) -> Result<()> {
    let api = run.system.broker_api()?;
    // An order makes five messages.
    let pause = Duration::from_secs_f64(100.0 / (5.0 * f64::from(run.rate)));
    run.phase("outage", "one message in a hundred can never be applied");
    let (end, mut sent) = (Instant::now() + run.outage, 0_usize);
    while Instant::now() < end || sent < LEAST {
        let id = Uuid::now_v7().to_string();
        let queue = QUEUES[sent % QUEUES.len()];
        let payload = match sent / QUEUES.len() % KINDS {
            0 => "not json".to_owned(),
            1 => foreign_event(&id, &id, "NoSuchType", &json!({})),
            _ => {
                let data = json!({ "reservationId": id, "orderId": Uuid::now_v7() });
                // Only the order service asks for the order. For the others the event is about two things at once.
                let subject = if queue == "orders.events" { id.clone() } else { Uuid::now_v7().to_string() };
                foreign_event(&id, &subject, "StockReserved", &data)
            }
        };
        api.publish(queue, &payload, &id).await?;
        sent += 1;
        sleep(pause).await;
    }
    run.injected(format!("{sent} bad messages were sent"), sent >= LEAST);
    let sign = format!("all {sent} bad messages are set aside");
    run.until_promised(&sign, async || Ok(count_waiting(run.system).await? == sent)).await;
    let reasons = count_reasons(run.system).await?;
    let discarded = discard_all(run.system, "sent by the drill").await?.len();
    let listed: Vec<_> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    run.phase(
        "discard",
        format!("an operator has discarded {discarded} dead letters: {}", listed.join(", ")),
    );
    let given_up: usize = GIVEN_UP.iter().filter_map(|reason| reasons.get(*reason)).sum();
    run.promised(
        format!("{given_up} were set aside at a limit, and not for what is wrong with them"),
        given_up == 0,
    );
    Ok(())
}

async fn publish_reordered(run: &DrillRun<'_>) -> Result<()> {
    let api = run.system.broker_api()?;
    api.declare_tap(TAP).await?;
    // What was published before the tap existed is not in it.
    sleep(run.outage).await;
    let messages = api.take(TAP, MAX_MESSAGES).await?;
    let mut copies: Vec<_> = messages.iter().flat_map(|message| [message; COPIES]).collect();
    fastrand::shuffle(&mut copies);
    run.phase("storm", format!("publishing {} events again, {COPIES} times each, shuffled", messages.len()));
    for message in &copies {
        publish_copy(&api, message, None).await?;
    }
    run.injected(format!("{} copies were published", copies.len()), copies.len() > 100);
    run.accepted_meanwhile().await;
    require_drops(run, copies.len() as u64).await;
    Ok(())
}

async fn publish_other_bodies(run: &DrillRun<'_>) -> Result<()> {
    let api = run.system.broker_api()?;
    api.declare_tap(TAP).await?;
    // What was published is applied before it comes again with another body.
    sleep(2 * run.outage).await;
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
        publish_copy(&api, message, Some(&event.to_string())).await?;
        forged += 1;
    }
    ensure!(forged > 0, "no creation was published");
    run.phase("forged", format!("published {forged} creations again, with ten times the quantity"));
    run.injected(format!("{forged} forged messages were published"), forged > 10);
    run.accepted_meanwhile().await;
    // Inventory and billing get each of them.
    require_drops(run, forged).await;
    Ok(())
}

/// The sum still fits the lines: an event that contradicts itself would be set aside before its id is looked at.
fn multiply(number: &mut Value) {
    *number = Value::from(number.as_i64().unwrap_or_default() * 10);
}

async fn require_drops(run: &DrillRun<'_>, at_least: u64) {
    run.seen_injected(&format!("{at_least} copies were recognized and dropped"), async || {
        let dropped = run.duplicates_dropped().await.known();
        Ok((dropped >= at_least).then(|| format!("{dropped} copies were recognized and dropped")))
    })
    .await;
}

async fn fall_behind(run: &DrillRun<'_>) -> Result<()> {
    let (api, system) = (run.system.broker_api()?, run.system);
    let frozen = run.inject(&Fault::Freeze("billing")).await?;
    run.phase("storm", "every event of orders is published again and again");
    let (mut depth, mut rounds) = (0, 0);
    while depth < BACKLOG_MESSAGES && rounds < MAX_ROUNDS {
        // With all lanes: a relay that marks the same rows in another order would be a deadlock.
        let again =
            "select lane from outbox_lanes order by lane for update; update outbox set published_at = null";
        system.execute_as("orders", again).await?;
        rounds += 1;
        let pending = "select count(*)::text from orders.outbox where published_at is null";
        testbed::eventually("the events to be published again", Duration::from_secs(60), async || {
            Ok((system.number::<u64>(pending).await? < 500).then_some(()))
        })
        .await?;
        if rounds % 8 == 0 {
            sleep(STATISTICS_INTERVAL).await;
        }
        depth = api.depth("billing.events").await.unwrap_or(depth);
    }
    run.repair(frozen).await?;
    run.phase("resume", format!("{depth} messages wait for billing, which continues"));
    run.injected(format!("{depth} messages waited for billing"), depth >= BACKLOG_MESSAGES);
    run.accepted_meanwhile().await;
    Ok(())
}

async fn replay_twice(run: &DrillRun<'_>) -> Result<()> {
    let defect = run.inject(&Fault::Defect).await?;
    run.accepted_meanwhile().await;
    let aside = Metric("billing", "inbox_dead_letters");
    Felt::More(Count(1.0), aside, "billing has set {} events aside").observe(run, 0.0).await?;
    run.end().await?;
    // Everything that can be applied is, before the repair.
    run.settled().await?;
    run.repair(defect).await?;
    let first = replay_all(run.system).await?;
    let second = replay_all(run.system).await?;
    sleep(DOUBT).await;
    let again = publish_again(run.system, REFUSED).await?;
    run.phase(
        "replay",
        format!("the first replay applied {first} events, the second {second}; {again} were published again"),
    );
    run.injected(format!("a replay applied {first} events"), first > 0);
    run.injected(format!("{again} events were published again"), again > 0);
    run.promised(format!("the second replay applied {second} events"), second == 0);
    Ok(())
}
