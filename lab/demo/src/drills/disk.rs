//! The disk of a server is full.

use std::time::SystemTime;

use anyhow::Result;
use tokio::time::sleep;

use super::broker::PENDING;
use super::drill::{Drill, Group, Subject};
use super::drill_run::DrillRun;
use super::felt::Felt;
use super::report::Refusals;
use crate::lab::CONDITION_DEADLINE;
use crate::own_system::OwnSystem;

pub(super) static DRILLS: [Drill; 2] = [
    Drill {
        name: "database-disk-full",
        group: Group::Database,
        teaches: "A database whose disk is full still answers reads, and may even take some writes. Health must notice that \
                  writes fail.",
        question: "Another program fills PostgreSQL's disk under load. What do clients get, what does health say, and what is \
                   left when there is room again?",
        claim: "While PostgreSQL's disk is full, orders are refused, and `/readyz` names the disk. What was acknowledged is \
                there, and everything goes on once there is room.",
        steps: Some(|run| Box::pin(fill_the_database(run))),
        refusals: Refusals::AreExpected,
        ..ROW
    },
    Drill {
        name: "broker-disk-full",
        group: Group::Broker,
        teaches: "A broker stops before its disk is full, so that it can still write what it has promised. The backlog waits in the \
                  outbox, on another disk.",
        question: "Another program fills RabbitMQ's disk under load, first to its limit, then to the last byte. Which messages \
                   are lost?",
        claim: "Orders are accepted while RabbitMQ's disk is full, and their events wait in the outbox. Everything arrives once \
                after there is room again.",
        steps: Some(|run| Box::pin(fill_the_broker(run))),
        ..ROW
    },
];

const ROW: Drill = Drill {
    system: Subject::Own(|| OwnSystem { needs_processes: true, ..OwnSystem::default() }),
    ..Drill::ROW
};

/// Less than the 50 MB that must be free on the broker's disk.
const BELOW_LIMIT: usize = 25_000_000;

async fn fill_the_database(run: &DrillRun<'_>) -> Result<()> {
    let own = run.system.own()?;
    let database = own.databases.primary();
    run.stop_load().await?;
    database.move_to_small_disk().await?;
    own.processes.wait_ready(CONDITION_DEADLINE).await?;
    run.steady().await?;
    let written = database.fill_disk(0)?;
    run.phase("outage", format!("another program has written {written} bytes: PostgreSQL's disk is full"));
    let refused = "http_request_seconds_count{route=\"POST /orders\",status=\"503\"}";
    run.until_injected("orders are refused with 503", async || {
        Ok(run.system.metric("orders", refused).await? > 0.0)
    })
    .await;
    run.seen_promised("/readyz names the disk", async || {
        let (status, health) = run.system.health("orders").await?;
        let health = health.to_string();
        Ok((status == 503 && health.contains("No space left"))
            .then(|| format!("/readyz answers 503: {health}")))
    })
    .await;
    run.until_promised("database_available is 0", async || {
        Ok(run.system.metric("orders", "database_available").await? == 0.0)
    })
    .await;
    sleep(run.outage).await;
    let from = SystemTime::now();
    let ended = database.free_disk().await?;
    let server =
        if ended { "PostgreSQL had ended, and was started again" } else { "PostgreSQL has run all the time" };
    run.phase("restart", format!("there is room again; {server}"));
    run.accepted_again(from).await;
    Ok(())
}

async fn fill_the_broker(run: &DrillRun<'_>) -> Result<()> {
    let own = run.system.own()?;
    let broker = own.rabbitmq.first();
    run.stop_load().await?;
    broker.move_to_small_disk().await?;
    own.processes.wait_ready(CONDITION_DEADLINE).await?;
    run.steady().await?;
    broker.fill_disk(BELOW_LIMIT)?;
    run.phase("outage", "another program has filled RabbitMQ's disk to below its limit");
    run.seen_promised("/readyz names the alarm", async || {
        let (status, health) = run.system.health("orders").await?;
        let health = health.to_string();
        Ok(health.contains("alarm").then(|| format!("/readyz answers {status}: {health}")))
    })
    .await;
    let before = PENDING.before(run).await?;
    PENDING.observe(run, before).await?;
    Felt::Accepted.observe(run, 0.0).await?;
    broker.fill_disk(0)?;
    run.phase("outage", "the other program has taken the last byte");
    Felt::Accepted.observe(run, 0.0).await?;
    let ended = broker.free_disk().await?;
    run.phase(
        "restart",
        if ended { "there is room again; RabbitMQ had ended" } else { "there is room again" },
    );
    Ok(())
}
