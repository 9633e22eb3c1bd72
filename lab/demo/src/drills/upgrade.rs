//! A server is replaced by one of a newer version.

use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::Result;
use tokio::time::sleep;

use super::drill::{Drill, Group, Subject};
use super::drill_run::DrillRun;
use super::felt::IN_FLIGHT;
use super::report::Refusals;
use super::service::{drain_queues, start_all_again};
use crate::own_system::OwnSystem;

pub(super) static DRILLS: [Drill; 2] = [
    Drill {
        name: "database-upgraded",
        group: Group::Database,
        teaches: "A major version needs other files, so the server stands still while they are made. Its clients need a bounded wait, \
                  a retry and no restart.",
        question: "PostgreSQL is stopped under load, its files are upgraded to another major version, and that one is started. Which \
                   process must be restarted?",
        claim: "While PostgreSQL is upgraded, orders are refused. Then everything goes on by itself with the new version, and what was \
                acknowledged is there.",
        system: Subject::Own(|| OwnSystem { needs_processes: true, ..OwnSystem::default() }),
        steps: Some(|run| Box::pin(upgrade_the_database(run))),
        refusals: Refusals::AreExpected,
        ..Drill::ROW
    },
    Drill {
        name: "broker-replaced",
        group: Group::Broker,
        teaches: "With an outbox a broker has nothing that is worth keeping: drain it, and put an empty one in its place, of any \
                  version. No queue's files are converted.",
        question: "RabbitMQ is replaced by an empty one under load, and no message is copied. What must happen before, so that none \
                   is missing?",
        claim: "After the relays were stopped and the queues drained, an empty RabbitMQ takes the old one's place. Nothing is lost, and \
                the next events go through the new one.",
        system: Subject::Own(|| OwnSystem { needs_processes: true, ..OwnSystem::default() }),
        steps: Some(|run| Box::pin(replace_the_broker(run))),
        refusals: Refusals::AreExpected,
        ..Drill::ROW
    },
];

/// Names the program of another RabbitMQ. Without it, it is the same version.
const NEXT_RABBITMQ: &str = "DEMO_NEXT_RABBITMQ";

/// Names the directory with the programs of a newer PostgreSQL. Without it, it is the same version.
const NEXT_POSTGRES: &str = "DEMO_NEXT_POSTGRES";

const VERSION: &str = "show server_version";

async fn upgrade_the_database(run: &DrillRun<'_>) -> Result<()> {
    let bin = std::env::var_os(NEXT_POSTGRES).map_or_else(testbed::find_postgres, |bin| Ok(bin.into()))?;
    let own = run.system.own()?;
    let server = own.databases.primary();
    let before = own.databases.read_at(server, VERSION).await?;
    let pids = || own.processes.names().map(|name| own.processes.pid(name)).collect::<Vec<_>>();
    let processes = pids();
    let from = SystemTime::now();
    server.upgrade(&bin, "shop").await?;
    let after = own.databases.read_at(server, VERSION).await?;
    let seconds = from.elapsed().unwrap_or_default().as_secs_f64();
    run.phase(
        "upgrade",
        format!(
            "PostgreSQL {before} was stopped, its files upgraded, and {after} started, in {seconds:.1} s"
        ),
    );
    report_versions(run, "PostgreSQL", &before, &after, NEXT_POSTGRES);
    run.accepted_again(SystemTime::now()).await;
    run.promised("no process was restarted", processes == pids());
    Ok(())
}

async fn replace_the_broker(run: &DrillRun<'_>) -> Result<()> {
    let own = run.system.own()?;
    let broker = own.rabbitmq.first();
    let before = broker.version().await?;
    drain_queues(run).await?;
    // Of what the consumers have taken, the last is acknowledged.
    sleep(IN_FLIGHT).await;
    broker.replace(std::env::var_os(NEXT_RABBITMQ).map(PathBuf::from).as_deref()).await?;
    let after = broker.version().await?;
    report_versions(run, "RabbitMQ", &before, &after, NEXT_RABBITMQ);
    run.accepted_meanwhile().await;
    own.processes.set_for_services("RELAY_WORKERS", "2");
    start_all_again(run).await?;
    run.phase("recover", "the services run with their relays");
    run.until_promised("events are published", async || Ok(run.published().await? > 0.0)).await;
    Ok(())
}

/// Records what took the server's place. If the variable names other programs, the version must differ.
fn report_versions(run: &DrillRun<'_>, server: &str, before: &str, after: &str, variable: &str) {
    if before == after {
        let what = format!("{server} {before} was replaced by the same version: {variable} names no other");
        run.injected(what, std::env::var_os(variable).is_none());
    } else {
        run.injected(format!("{server} {before} was replaced by {after}"), true);
    }
}
