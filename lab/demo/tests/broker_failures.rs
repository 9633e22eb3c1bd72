//! Every way in which the broker can fail: how soon the services notice, and how soon they recover by themselves.
//!
//! The times are printed and not judged: they say little about a busy machine. The test fails if a failure is not
//! noticed, if the services do not recover, if something is lost, or if an attempt is counted that is not the event's
//! own failure. Drills inject the same faults for longer, under load.

#![allow(clippy::print_stdout, reason = "the table is part of the result")]

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use demo::RunningSystem;
use demo::fault::Fault;
use demo::lab::{CONDITION_DEADLINE, Setup};
use testbed::{eventually, longer};
use tokio::time::timeout;

struct Failure {
    name: &'static str,
    fault: &'static Fault<'static>,
    /// Whether attempts may be counted: a message that is returned as unroutable is that message's own failure.
    counts_attempts: bool,
    /// Whether the services repair it themselves. It can be over before it is noticed.
    repaired_by_services: bool,
    /// Whether orders are placed meanwhile. Not if one of several queues is missing: what is published then misses that
    /// queue (docs/guarantees.md).
    with_orders: bool,
}

const SERVICES: [&str; 3] = ["orders", "inventory", "billing"];
const NOTICE_DEADLINE: Duration = Duration::from_secs(30);
/// A frozen process does not answer.
const PROBE_DEADLINE: Duration = Duration::from_secs(2);
/// RabbitMQ 3.10, killed within a second or so of a quorum queue's creation, comes back without a leader for that
/// queue.
const QUEUES_SETTLE: Duration = Duration::from_secs(7);

/// A failure that someone else repairs, while orders are placed.
const fn failure(name: &'static str, fault: &'static Fault<'static>) -> Failure {
    Failure { name, fault, counts_attempts: false, repaired_by_services: false, with_orders: true }
}

/// A failure that the services repair themselves.
const fn passing_failure(name: &'static str, fault: &'static Fault<'static>) -> Failure {
    Failure { repaired_by_services: true, ..failure(name, fault) }
}

static FAILURES: [Failure; 9] = [
    failure("killed", &Fault::Kill("broker")),
    failure("frozen", &Fault::Freeze("broker")),
    failure("memory alarm", &Fault::MemoryAlarm),
    passing_failure("all connections closed", &Fault::CloseConnections { of_all: true }),
    failure("refusing our password", &Fault::ChangePassword),
    passing_failure("exchange deleted", &Fault::DeleteExchange),
    Failure { counts_attempts: true, ..passing_failure("all bindings deleted", &Fault::DeleteBindings) },
    Failure {
        with_orders: false,
        ..passing_failure("a queue deleted while empty", &Fault::DeleteQueue("inventory"))
    },
    Failure {
        with_orders: false,
        ..failure("a queue with other arguments", &Fault::ReplaceQueue("billing"))
    },
];

#[tokio::test]
async fn every_broker_failure_is_noticed_and_the_services_recover_by_themselves() -> Result<()> {
    // One relay: while it restores one binding after the other, a second one could publish to the first queue alone
    // (docs/guarantees.md).
    let system = RunningSystem::private(Setup::default().with("ORDERS_RELAY_WORKERS", "1")).await?;
    system.load(20, QUEUES_SETTLE).await?;
    system.held().await?;
    println!("{:<30} {:>12} {:>12}", "the broker is", "noticed", "recovered");
    for failure in &FAILURES {
        let (noticed, recovered) = fail(&system, failure).await.context(failure.name)?;
        let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        println!(
            "{:<30} {:>12} {:>12}",
            failure.name,
            noticed.map_or("in passing".to_owned(), seconds),
            seconds(recovered)
        );
    }
    Ok(())
}

/// Injects a failure and repairs it. Returns how long the services took to notice it, and how long after the repair
/// everything was applied.
async fn fail(system: &RunningSystem, failure: &Failure) -> Result<(Option<Duration>, Duration)> {
    // How many failed attempts the events of the order service have.
    let attempts = "select coalesce(sum(attempts), 0)::text from orders.outbox";
    let attempts_before: u64 = system.number(attempts).await?;
    let failed_before = system.metric("orders", "outbox_failed_total").await?;
    let inject = async {
        let injected = failure.fault.inject(system).await?;
        if failure.with_orders {
            for _ in 0..5 {
                system.order().await?;
            }
        }
        anyhow::Ok(injected)
    };
    // Begins before the failure, because the services may repair it within milliseconds.
    let began = Instant::now();
    let notice = async {
        let noticed = eventually("a service to notice", NOTICE_DEADLINE, async || {
            let failed = timeout(longer(PROBE_DEADLINE), system.metric("orders", "outbox_failed_total"));
            let failed = failed.await?? > failed_before;
            Ok((failed || reports_an_outage(system).await?).then_some(()))
        });
        Ok(noticed.await.ok().map(|()| began.elapsed()))
    };
    let (injected, noticed) = tokio::try_join!(inject, notice)?;
    ensure!(
        noticed.is_some() || failure.repaired_by_services,
        "no service noticed it within {NOTICE_DEADLINE:?}"
    );
    injected.repair(system).await?;
    let repaired_at = Instant::now();
    if !failure.with_orders {
        await_health(system).await?;
    }
    system.order().await?;
    system.held().await?;
    await_health(system).await?;
    let attempts: u64 = system.number(attempts).await?;
    let allowed = failure.counts_attempts || attempts == attempts_before;
    ensure!(allowed, "attempts were counted: {attempts_before} before, {attempts} now");
    Ok((noticed, repaired_at.elapsed()))
}

/// Waits until no service reports an outage of the broker.
async fn await_health(system: &RunningSystem) -> Result<()> {
    eventually("all services to be healthy", CONDITION_DEADLINE, async || {
        Ok((!reports_an_outage(system).await?).then_some(()))
    })
    .await
}

/// Whether a service reports that its broker is unavailable.
async fn reports_an_outage(system: &RunningSystem) -> Result<bool> {
    for service in SERVICES {
        let (_, health) = timeout(longer(PROBE_DEADLINE), system.health(service)).await??;
        if health["parts"]["broker"]["up"] == false {
            return Ok(true);
        }
    }
    Ok(false)
}

/// It cannot see at its start that it would neither publish nor consume.
#[tokio::test]
async fn service_with_another_number_of_partitions_ends_once_the_broker_it_has_waited_for_answers()
-> Result<()> {
    let system = RunningSystem::private(Setup::default()).await?;
    let processes = system.processes()?;
    // So that the queues are in use, whoever connects first.
    processes.terminate("billing").await?;
    system.order().await?;
    system.until_metric("orders", "outbox_published_total", 1.0).await?;
    tokio::time::sleep(QUEUES_SETTLE).await;
    let broker = Fault::Kill("broker").inject(&system).await?;
    processes.set("INVENTORY_PARTITIONS", "4");
    processes.terminate("inventory").await?;
    processes.start_again("inventory").await?;
    eventually("inventory to wait for the broker", CONDITION_DEADLINE, async || {
        let (_, health) = system.health("inventory").await?;
        Ok((health["parts"]["database"]["up"] == true && health["parts"]["broker"]["up"] == false)
            .then_some(()))
    })
    .await?;
    broker.repair(&system).await?;
    eventually("inventory to end", CONDITION_DEADLINE, async || {
        Ok(processes.pid("inventory").is_none().then_some(()))
    })
    .await?;
    let log = processes.log("inventory")?;
    let reason = "invalid setting: INVENTORY_PARTITIONS: the queues have 1 partitions";
    ensure!(log.contains(reason), "{log}");
    Ok(())
}
