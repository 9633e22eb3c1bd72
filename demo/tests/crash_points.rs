//! Every place at which a drill build can strike, three ways each: killed, frozen and let go again, and asked to stop.
//! Whatever happens where, what was promised is kept.

#![allow(clippy::print_stdout, reason = "the list of what was tried is part of the result")]

use std::{path::Path, process::Command};

use anyhow::{Result, ensure};
use demo::lab::{PATIENCE, Setup, Stage};
use faults::Point;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use testbed::{TestVhost, eventually};
use tokio::time::timeout;
use uuid::Uuid;

/// Each is a system of four processes that mostly waits.
const AT_A_TIME: usize = 4;

#[tokio::test]
async fn whatever_happens_at_any_point_nothing_is_lost_and_nothing_doubled() -> Result<()> {
    let all =
        Point::ALL.into_iter().flat_map(|point| ["kill", "freeze", "stop"].map(|action| (point, action)));
    let broken: Vec<_> = stream::iter(all)
        .map(async |(point, action)| {
            let result = strike(point, action).await;
            match &result {
                Ok(copies) => println!("{:<20} {action:<7} held, {copies} copies dropped", point.name()),
                Err(error) => println!("{:<20} {action:<7} BROKEN: {error:#}", point.name()),
            }
            result.err().map(|error| format!("{} {action}: {error:#}", point.name()))
        })
        .buffer_unordered(AT_A_TIME)
        .filter_map(async |broken| broken)
        .collect()
        .await;
    ensure!(broken.is_empty(), "{} of {} broken:\n{}", broken.len(), 3 * Point::ALL.len(), broken.join("\n"));
    Ok(())
}

/// Lets one process be struck at `point` while orders come in, mends it, and counts. Returns how many duplicates the
/// consumers that are running now have dropped.
async fn strike(point: Point, action: &str) -> Result<u64> {
    let once = std::env::temp_dir().join(format!("strike-{}", Uuid::new_v4()));
    let vhost = testbed::vhost().await?;
    let setup = Setup::default().striking(format!("{}:{action}", point.name()), &once);
    let stage = Stage::ready(&vhost.url(), setup).await?;
    if matches!(point, Point::DeadLetterKept | Point::DeadLetterStored) {
        poison(&stage, &vhost).await?;
    }
    // A frozen process answers only once it is let go: the orders wait while it is mended.
    let (placed, mended) = tokio::join!(place(&stage), mend(&stage, &once, action));
    placed?;
    mended?;
    stage.revive().await?;
    // And it works again. A connection of the client that died with the process may fail the first attempt.
    let id = eventually("an order to be accepted", PATIENCE, async || stage.order().await.map(Some)).await?;
    eventually("its cancellation", PATIENCE, async || stage.cancel(id).await.map(Some)).await?;
    stage.held().await?;
    std::fs::remove_file(&once)?;
    let mut copies = 0.0;
    for consumer in ["inventory", "billing"] {
        copies += stage.counter(consumer, "inbox_duplicates_total").await?;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
    Ok(copies as u64)
}

/// Many orders at once, so that batches and groups have more than one in them, and some cancellations. Those that a
/// strike cuts off were promised nothing.
async fn place(stage: &Stage) -> Result<()> {
    let placing = stream::iter(0..40).map(|_| timeout(PATIENCE, stage.order())).buffer_unordered(20);
    let accepted: Vec<_> = placing.filter_map(async |placed| placed.ok()?.ok()).collect().await;
    for id in accepted.iter().take(5) {
        let _ = timeout(PATIENCE, stage.cancel(*id)).await?;
    }
    Ok(())
}

/// Waits for the strike, and lets a frozen process go on; one that is gone is started again later.
async fn mend(stage: &Stage, once: &Path, action: &str) -> Result<()> {
    let struck = struck_by(once).await?;
    if action == "freeze" {
        eventually("the process to be frozen", PATIENCE, async || Ok(is_frozen(struck)?.then_some(())))
            .await?;
        ensure!(Command::new("kill").args(["-CONT", &struck.to_string()]).status()?.success());
        return Ok(());
    }
    eventually("the process to be gone", PATIENCE, async || {
        let running = ["orders", "inventory", "billing"].map(|name| stage.system.pid(name));
        Ok((!running.contains(&Some(struck))).then_some(()))
    })
    .await
}

async fn struck_by(once: &Path) -> Result<u32> {
    eventually("the point to be reached", PATIENCE, async || {
        Ok(std::fs::read_to_string(once).ok().and_then(|pid| pid.parse().ok()))
    })
    .await
}

/// Whether a process is stopped by a signal, as Linux tells it.
fn is_frozen(pid: u32) -> Result<bool> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    Ok(status.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')))
}

/// A message that can never be applied, into inventory's queue.
async fn poison(stage: &Stage, vhost: &TestVhost) -> Result<()> {
    let message = json!({
        "routing_key": "inventory.events", "payload": "not json", "payload_encoding": "string",
        "properties": { "message_id": "poison", "delivery_mode": 2 },
    });
    let url = format!("{}/api/exchanges/{}/amq.default/publish", vhost.api_url(), vhost.name());
    let answer = stage.client.post(url).json(&message).send().await?;
    let answer: Value = answer.error_for_status()?.json().await?;
    ensure!(answer["routed"] == true, "the poison reached no queue");
    Ok(())
}

/// The names of the points and sabotages are in the drill builds, and nothing of the kind is in the others.
#[tokio::test]
async fn a_normal_build_has_no_crash_points_and_no_sabotages() -> Result<()> {
    testbed::build_services(false).await?;
    testbed::build_drill_services(false).await?;
    for service in ["orders", "inventory", "billing"] {
        let normal = std::fs::read(testbed::find_service(service)?)?;
        let drill = std::fs::read(testbed::find_service(&format!("{service}-drill"))?)?;
        let holds =
            |binary: &[u8], text: &str| binary.windows(text.len()).any(|part| part == text.as_bytes());
        for text in ["DRILL_POINT", "DRILL_SABOTAGE", "this is a drill build"] {
            ensure!(holds(&drill, text), "{service}-drill does not hold {text:?}: this test is blind");
            ensure!(!holds(&normal, text), "{service} holds {text:?}");
        }
        for name in
            Point::ALL.map(Point::name).into_iter().chain(faults::Sabotage::ALL.map(faults::Sabotage::name))
        {
            ensure!(!holds(&normal, name), "{service} holds {name:?}");
        }
    }
    Ok(())
}
