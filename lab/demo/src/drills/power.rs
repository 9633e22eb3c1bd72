//! Both servers lose their power: what they have written and not synced is gone.

use std::time::SystemTime;

use anyhow::Result;
use futures_util::future::try_join_all;
use testbed::Server;
use tokio::time::sleep;

use super::drill::{Drill, Group, Subject};
use super::drill_run::DrillRun;
use super::felt::IN_FLIGHT;
use super::report::Refusals;
use crate::lab::CONDITION_DEADLINE;
use crate::own_system::OwnSystem;

pub(super) static DRILLS: [Drill; 1] = [Drill {
    name: "power-lost",
    group: Group::Database,
    teaches: "A process that is killed loses nothing that it has written. A machine without power loses all that was not synced: \
              only this tells a commit on disk from one in memory.",
    question: "PostgreSQL and RabbitMQ lose their power under load, and every write that no `fsync` followed is gone. Which \
               acknowledged orders are left?",
    claim: "When both servers lose what they have not synced, every order that was acknowledged before is on disk. It is \
            published and applied once after they run again.",
    system: Subject::Own(|| OwnSystem { needs_processes: true, ..OwnSystem::default() }),
    steps: Some(|run| Box::pin(lose_power(run))),
    refusals: Refusals::AreExpected,
    ..Drill::ROW
}];

/// `outage` is the time of the load whose unsynced writes are lost.
async fn lose_power(run: &DrillRun<'_>) -> Result<()> {
    let own = run.system.own()?;
    let servers: [(&str, &Server); 2] =
        [("PostgreSQL", own.databases.primary()), ("RabbitMQ", own.rabbitmq.first())];
    run.stop_load().await?;
    run.phase("prepare", "both servers are started again: what they write and do not sync is recorded");
    let unsynced = try_join_all(servers.map(|(_, server)| server.record_unsynced())).await?;
    own.processes.wait_ready(CONDITION_DEADLINE).await?;
    run.steady().await?;
    // As if the kernel had written all of it by now. Without this a server that never syncs would be as empty as at its start.
    for ((_, server), unsynced) in servers.iter().zip(&unsynced) {
        server.forget_unsynced(unsynced).await?;
    }
    let from = SystemTime::now();
    sleep(run.outage).await;
    let accepted = run.accepted_since(from);
    run.injected(format!("{accepted} orders were acknowledged before the power was lost"), accepted > 0);

    let both = servers.iter().zip(&unsynced);
    let taken = try_join_all(both.map(|((_, server), unsynced)| server.lose_power(unsynced))).await?;
    for ((name, _), taken) in servers.iter().zip(&taken) {
        let lost = format!("{} bytes of {} writes to {} files", taken.bytes, taken.writes, taken.files);
        run.phase("outage", format!("{name} has lost its power, and {lost} that were not synced"));
    }
    let (bytes, files): (u64, usize) = taken.iter().fold((0, 0), |(b, f), t| (b + t.bytes, f + t.files));
    run.injected(format!("{bytes} unsynced bytes in {files} files were lost"), bytes > 0);
    sleep(IN_FLIGHT).await;
    // How fast a backlog drains is for other drills to say. RabbitMQ may take a minute to start.
    run.stop_load().await?;
    run.phase("restart", "starting both again");
    let from = SystemTime::now();
    let started = try_join_all(servers.map(|(_, server)| server.start())).await;
    let why = started.as_ref().map_or_else(|error| format!(": {error:#}"), |_| String::new());
    run.promised(format!("both servers start again after the loss of power{why}"), started.is_ok());
    run.steady().await?;
    run.accepted_again(from).await;
    Ok(())
}
