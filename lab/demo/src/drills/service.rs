//! What happens to the services and to the payment provider.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use load_tests::Mix;
use sqlx::Connection as _;
use testbed::{eventually, within};
use tokio::time::sleep;

use super::at_end::{copies_were_dropped, each_order_was_answered, no_time_outs, nothing_is_set_aside};
use super::drill::{Drill, Group, Subject};
use super::drill_run::DrillRun;
use super::felt::{
    Felt,
    Figure::Metric,
    Limit::{Count, Seconds},
};
use super::report::Refusals;
use crate::fault::{Fault, reach_crash_point};
use crate::http;
use crate::lab::{CONDITION_DEADLINE, Setup, copy_order, resume_process};
use crate::own_system::OwnSystem;
use crate::part::{BROKER, DATABASE, SERVICES};
use crate::paths;

pub(super) static DRILLS: [Drill; 20] = [
    Drill {
        name: "saga",
        teaches: "Each step of the saga is one local transaction, and its event is the only thing that starts the next \
                  one.",
        question: "Every process is killed once. Which orders stay half-way, paid but not reserved?",
        claim: "Whatever is killed meanwhile, every accepted order ends confirmed or cancelled. What was reserved and \
                charged for a cancelled order is released and refunded, once. Stock and money add up.",
        outage: Duration::from_secs(20),
        steps: Some(|run| Box::pin(inject_in_turn(run, &KILLS))),
        refusals: Refusals::AreExpected,
        at_end: &[|run, ended| {
            let found = &ended.settled.reconciliation;
            let (confirmed, cancelled, refunded) = (found.confirmed, found.cancelled, found.refunded);
            run.injected(
                format!("{confirmed} orders were confirmed and {cancelled} cancelled, and {refunded} cents refunded"),
                confirmed > 0 && cancelled > 0 && refunded > 0,
            );
        }],
        ..ROW
    },
    Drill {
        name: "order-killed-before-commit",
        teaches: "What is not committed was never promised: the client has no 201, and nothing needs cleaning up.",
        question: "The order service dies after it has read and priced an order. What is left of that order?",
        claim: "An order whose process dies before the commit leaves nothing behind, in no service.",
        system: Subject::Own(|| at("orders", "order-unwritten:kill")),
        ..CRASH
    },
    Drill {
        name: "order-killed-after-commit",
        teaches: "The row in the outbox is enough: no wake-up, no answer and no process needs to survive.",
        question: "The order service dies after the commit, before its relay is woken and before the client is \
                   answered. Does the order go on?",
        claim: "An order whose process dies right after the commit is published and ends like any other, also without \
                a 201.",
        system: Subject::Own(|| at("orders", "order-written:kill")),
        ..CRASH
    },
    Drill {
        name: "relay-killed-after-confirm",
        teaches: "Publish, then mark. In between lies a crash, and so a copy; the other order of steps would lose the \
                  event.",
        question: "The broker has confirmed an event, and the relay dies before it marks it. What will the next relay \
                   do?",
        claim: "Events that were confirmed and not marked are published again under the same ids, and change nothing.",
        system: Subject::Own(|| at("orders", "relay-confirmed:kill")),
        steps: Some(|run| Box::pin(kill_relay(run))),
        at_end: &[copies_were_dropped],
        ..CRASH
    },
    Drill {
        name: "relay-frozen",
        teaches: "A lock that outlives its holder must end by a time-out of the server: the holder cannot give it \
                  back.",
        question: "A relay freezes while it holds lanes, for longer than half a minute. Who publishes the events of \
                   these lanes?",
        claim: "The database ends the frozen relay's transaction after 30 s, and another one publishes its events. \
                What the first does when it continues changes nothing.",
        outage: Duration::from_secs(35),
        system: Subject::Own(|| OwnSystem {
            setup: Setup::default().with_instances(2, 1, 1),
            ..at("orders", "relay-claimed:freeze")
        }),
        steps: Some(|run| Box::pin(freeze_relay(run))),
        refusals: Refusals::AreExpected,
        ..ROW
    },
    Drill {
        name: "consumer-killed-before-commit",
        teaches: "The record \"processed\" and the effect are one transaction: they are both there, or neither.",
        question: "A consumer dies after it has written an effect, before the commit. Is the message lost, or applied \
                   twice?",
        claim: "An effect that was not committed is undone, its message is delivered again, and it happens once.",
        system: Subject::Own(|| at("inventory", "effect-written:kill")),
        ..CRASH
    },
    Drill {
        name: "consumer-killed-after-commit",
        teaches: "Commit, then acknowledge. A message that comes again is recognized by its id.",
        question: "A consumer dies after the commit, before it acknowledges. The broker delivers again: what happens?",
        claim: "Messages that were committed and not acknowledged are delivered again, recognized, and change nothing.",
        system: Subject::Own(|| at("inventory", "effect-committed:kill")),
        at_end: &[copies_were_dropped],
        ..CRASH
    },
    Drill {
        name: "billing-killed-after-charge",
        teaches: "A call to another company cannot be part of a transaction. Ask again under the same key.",
        question: "The provider has charged the customer, and billing dies before it writes that down. Is he charged \
                   twice?",
        claim: "A charge whose answer was lost with its process is asked for again under the same key: one charge, one \
                answer.",
        system: Subject::Own(|| at("billing", "payment-answered:kill")),
        ..CRASH
    },
    Drill {
        name: "services-terminated",
        teaches: "A deployment is the most frequent fault. A process that is asked to stop finishes what it has begun.",
        question: "Each service gets SIGTERM under load. Which messages come twice, and which clients get no answer?",
        claim: "A service that is asked to stop exits with code 0, the client of each order that it writes gets an \
                answer, and nothing is lost.",
        outage: Duration::from_secs(1),
        system: Subject::Own(OwnSystem::default),
        steps: Some(|run| Box::pin(terminate(run))),
        refusals: Refusals::AreExpected,
        at_end: &[each_order_was_answered],
        ..ROW
    },
    Drill {
        name: "consumer-frozen",
        teaches: "A consumer that hangs delays its own work. Its messages wait in its queue, and the others go on.",
        question: "Inventory is stopped with SIGSTOP. Are orders accepted? Are customers charged?",
        claim: "While inventory is frozen, orders are accepted and charged. They are confirmed after it continues.",
        faults: &[Fault::Freeze("inventory")],
        felt: &[
            Felt::Accepted,
            Felt::More(
                Seconds(1.0),
                Metric("orders", "orders_open"),
                "{} accepted orders wait for inventory",
            ),
        ],
        at_end: &[no_time_outs],
        ..ROW
    },
    Drill {
        name: "partition-owner-killed",
        teaches: "Instances share the work by partitions, and the broker decides who has one. The next instance takes over what \
                  the last one held, before anything newer.",
        question: "The instance of inventory that has a partition is killed. Who applies its events, how soon, and in which \
                   order?",
        claim: "Another instance takes over each partition of a killed one. No event is lost or applied twice, and the events \
                of an order are applied in order.",
        outage: Duration::from_secs(2),
        system: Subject::Own(|| Setup::default().with_instances(1, 2, 1).with_partitions(PARTITIONS).into()),
        steps: Some(|run| Box::pin(kill_owners(run))),
        ..ROW
    },
    Drill {
        name: "partitions-changed",
        teaches: "Dividing a queue moves aggregates. Their order holds only if the old queue is empty first, and the system \
                  refuses otherwise.",
        question: "One queue becomes four under load. What happens to an order whose creation waits in the old queue while its \
                   cancellation goes into a new one?",
        claim: "A service with another number of partitions refuses to start while the queues are in use. Once they are \
                drained, all services start with it; the events of an order stay in order, and none is lost.",
        outage: Duration::from_secs(2),
        system: Subject::Own(OwnSystem::default),
        steps: Some(|run| Box::pin(change_partitions(run))),
        refusals: Refusals::AreExpected,
        ..ROW
    },
    Drill {
        name: "log-reader-stalls",
        teaches: "Standard output is a pipe, and a pipe can be full. A service that waits for its log is as slow as \
                  the reader of its log.",
        question: "Whatever reads the order service's log is stopped with SIGSTOP. How long does the service go on?",
        claim: "While no one reads its log, the order service accepts orders and answers `/livez`. Afterwards a line \
                says how many lines were dropped.",
        // At `debug` each request is a line more: a pipe holds 64 KiB.
        system: Subject::Own(|| {
            Setup { piped_logs: true, ..Setup::default() }.with("ORDERS_LOG", "debug").into()
        }),
        steps: Some(|run| Box::pin(stall_log_reader(run))),
        ..ROW
    },
    Drill {
        name: "scale-out-and-in",
        teaches: "Relays divide the lanes among themselves by locks in the database. No instance knows of another.",
        question: "Four order services run where one did, and then one again. Who decides which relay publishes what?",
        claim: "From one instance to four and back, events of an order are published in order, and none is lost.",
        outage: Duration::from_secs(5),
        system: Subject::Own(|| Setup::default().with_instances(4, 1, 1).into()),
        steps: Some(|run| Box::pin(scale(run))),
        ..ROW
    },
    Drill {
        name: "instances-mixed-faults",
        teaches: "The instances of a service share its tables and its queue, and know nothing of each other. Locks and the \
                  broker decide which of them works, also when one fails.",
        question: "Four order services, two inventories and two billings run. Processes, connections and servers fail one \
                   after the other. Which event does no instance publish, or two apply?",
        claim: "However many instances run and whichever of them fails, every accepted order ends once, in order, and money \
                and stock add up.",
        outage: Duration::from_secs(5),
        system: Subject::Own(|| Setup::default().with_instances(4, 2, 2).into()),
        steps: Some(|run| Box::pin(break_instances(run))),
        refusals: Refusals::AreExpected,
        ..ROW
    },
    Drill {
        name: "release-rolled",
        teaches: "During a roll-out processes of two releases share tables, queues and events. The next release must be \
                  able to read what this one writes, and the other way round.",
        question: "Each process is replaced by one of the previous release, and then back, under load. Which events can \
                   one of the two not read?",
        claim: "Whichever release a process is of, it applies the other one's events, once and in order.",
        outage: Duration::from_secs(3),
        system: Subject::Own(|| Setup::default().with_instances(2, 2, 2).into()),
        steps: Some(|run| Box::pin(roll(run))),
        refusals: Refusals::AreExpected,
        at_end: &[nothing_is_set_aside],
        ..ROW
    },
    Drill {
        name: "no-wake-up",
        teaches: "A wake-up makes the relay fast, and may be lost. The poll makes it correct.",
        question: "Another program writes orders with their events, and notifies no relay. When are they published?",
        claim: "Events that no wake-up announces are found by the poll, and arrive once.",
        outage: Duration::ZERO,
        system: Subject::Own(OwnSystem::default),
        steps: Some(|run| Box::pin(write_silently(run))),
        ..ROW
    },
    Drill {
        name: "provider-away",
        teaches: "What depends on another company waits in a table with a due time, not in a request and not in a \
                  queue.",
        question: "The payment provider is down. Are orders accepted? What does billing do with its messages?",
        claim: "While the provider is down, orders are accepted and stock is reserved. Each customer is charged once \
                afterwards, and no order times out.",
        faults: &[Fault::Kill("provider")],
        felt: &[
            Felt::More(
                Seconds(1.0),
                Metric("billing", "payments_pending"),
                "{} payments wait for the provider",
            ),
            Felt::Accepted,
        ],
        at_end: &[no_time_outs],
        ..ROW
    },
    Drill {
        name: "provider-faults",
        teaches: "An error says nothing about whether the charge was made. Only the same key makes asking again safe.",
        question: "A third of the provider's answers are errors, and half of those came after the charge. Who pays \
                   twice?",
        claim: "Whatever the provider answers, no customer is charged or refunded twice, and every order ends.",
        outage: Duration::from_secs(15),
        // A call that hangs would otherwise hold its payment for half a minute.
        system: Subject::Own(|| Setup::default().with("BILLING_PROVIDER_DEADLINE", "500ms").into()),
        faults: &[Fault::Provider {
            what: "errors before and after the charge, answers that hang, answers that are late",
            faults: r#"[{ "fault": "error-after", "percent": 15 }, { "fault": "error-before", "percent": 10 },
                        { "fault": "hang-after", "percent": 5 },
                        { "fault": "slow", "percent": 20, "milliseconds": 300 }]"#,
        }],
        felt: &[
            Felt::Lasts,
            Felt::More(
                Count(20.0),
                Metric("provider", "provider_faults_struck_total"),
                "the provider failed {} times",
            ),
        ],
        ..ROW
    },
    Drill {
        name: "provider-fails-once",
        teaches: "A timer that begins again with each new task never ends under load. Judge progress while the load goes on.",
        question: "One call to the provider fails, and good orders keep coming. Who calls again, and when?",
        claim: "A call that failed is repeated while new payments keep coming.",
        system: Subject::Own(OwnSystem::default),
        steps: Some(|run| Box::pin(fail_once(run))),
        at_end: &[no_time_outs],
        cancels: false,
        ..ROW
    },
];

const ROW: Drill = Drill { group: Group::Service, ..Drill::ROW };

/// A process kills itself at the system's crash point, and stays down for a while.
const CRASH: Drill = Drill {
    outage: Duration::from_secs(2),
    faults: &[Fault::Crash],
    felt: &[Felt::Lasts],
    refusals: Refusals::AreExpected,
    ..ROW
};

fn at(service: &'static str, point: &'static str) -> OwnSystem {
    OwnSystem { crash_point: Some((service, point)), ..OwnSystem::default() }
}

/// The load between a repair and the next fault.
const BETWEEN_FAULTS: Duration = Duration::from_secs(4);
/// How long a fault lasts. The broker is away for the whole outage.
const SHORT_OUTAGE: Duration = Duration::from_secs(2);

const KILLS: [Fault<'_>; 5] = [
    Fault::Kill("orders"),
    Fault::Kill("inventory"),
    Fault::Kill("billing"),
    Fault::Kill("provider"),
    Fault::Kill(BROKER),
];
/// One instance of each service, and what all of them share.
const MIXED_FAULTS: [Fault<'_>; 8] = [
    Fault::Kill("orders"),
    Fault::Kill("inventory"),
    Fault::Kill("billing"),
    Fault::Freeze("orders-2"),
    Fault::TerminateSessions,
    Fault::CloseConnections { of_all: false },
    Fault::Kill(DATABASE),
    Fault::Kill(BROKER),
];

const PARTITIONS: u8 = 4;

const OTHERS: [&str; 3] = ["orders-2", "orders-3", "orders-4"];
/// The relay polls each second. Much later it would find the events all the same: it listens again after half a minute.
const FOUND_WITHIN: Duration = Duration::from_secs(15);
/// How many orders are written without a wake-up.
const SILENT: usize = 20;

async fn inject_in_turn(run: &DrillRun<'_>, faults: &[Fault<'_>]) -> Result<()> {
    for fault in faults {
        let injected = run.inject(fault).await?;
        sleep(if injected.killed() == Some(BROKER) { run.outage } else { SHORT_OUTAGE }).await;
        run.repair(injected).await?;
        sleep(BETWEEN_FAULTS).await;
    }
    Ok(())
}

const ONE_FAILED_CALL: Fault<'_> = Fault::Provider {
    what: "the provider answers one call with an error, and does nothing",
    faults: r#"[{ "fault": "error-before", "times": 1 }]"#,
};

/// Of good orders alone: a cancellation would have billing look for what is due.
async fn fail_once(run: &DrillRun<'_>) -> Result<()> {
    run.stop_load().await?;
    run.start_load_of(Mix::Good, vec![])?;
    let failed = run.inject(&ONE_FAILED_CALL).await?;
    let count = || run.system.metric("provider", "provider_faults_struck_total");
    run.until_injected("the provider failed a call", async || Ok(count().await? == 1.0)).await;
    run.accepted_meanwhile().await;
    run.repair(failed).await
}

/// Places orders at all instances.
async fn break_instances(run: &DrillRun<'_>) -> Result<()> {
    let processes = &run.system.own()?.processes;
    run.stop_load().await?;
    let others = OTHERS.map(|name| processes.url(name).map(str::to_owned));
    run.start_load_of(Mix::Real, others.into_iter().collect::<Result<_>>()?)?;
    inject_in_turn(run, &MIXED_FAULTS).await?;
    // The standby of a killed consumer takes over: without this, standbys that do nothing would hold.
    let published = OTHERS.map(|name| (name, "outbox_published_total"));
    for (name, metric) in
        published.into_iter().chain(["inventory-2", "billing-2"].map(|name| (name, "inbox_applied_total")))
    {
        let events = run.system.metric(name, metric).await?;
        run.promised(format!("{name}: {metric} is {events}"), events > 0.0);
    }
    Ok(())
}

/// Kills the relay of orders while billing stands still. No order is confirmed then: nobody here consumes `OrderConfirmed`, so
/// nobody would drop a copy of it.
async fn kill_relay(run: &DrillRun<'_>) -> Result<()> {
    let count = async |condition| {
        let confirmed = "select (count(*))::text from orders.outbox where event_type = 'OrderConfirmed'";
        run.system.number::<u64>(&format!("{confirmed} {condition}")).await
    };
    eventually("an order to be confirmed", CONDITION_DEADLINE, async || {
        Ok((count("").await? > 0).then_some(()))
    })
    .await?;
    let frozen = run.inject(&Fault::Freeze("billing")).await?;
    eventually("no order to be confirmed for a second", CONDITION_DEADLINE, async || {
        Ok((count("and created_at > clock_timestamp() - interval '1 s'").await? == 0).then_some(()))
    })
    .await?;
    let killed = run.inject(&Fault::Crash).await?;
    sleep(run.outage).await;
    run.repair(frozen).await?;
    run.repair(killed).await?;
    run.accepted_again(SystemTime::now()).await;
    Ok(())
}

async fn freeze_relay(run: &DrillRun<'_>) -> Result<()> {
    let (name, pid) = reach_crash_point(run.system).await?;
    run.phase("frozen", format!("process {pid} ({name}) has stopped itself while it holds lanes"));
    let held = "select (count(*) filter (where state = 'idle in transaction'
                    and state_change < now() - interval '10 s'))::text
                from pg_stat_activity where usename in ('orders', 'inventory', 'billing')";
    let held = async || -> Result<u32> { run.system.number(held).await };
    run.until_injected("the frozen relay's transaction is open for ten seconds", async || {
        Ok(held().await? > 0)
    })
    .await;
    sleep(run.outage.saturating_sub(Duration::from_secs(10))).await;
    run.until_promised("the server has ended that transaction", async || Ok(held().await? == 0)).await;
    resume_process(pid)
}

async fn terminate(run: &DrillRun<'_>) -> Result<()> {
    let processes = &run.system.own()?.processes;
    for service in SERVICES {
        let code = processes.terminate(service).await?;
        run.phase("stop", format!("{service} was asked to stop, and exited with {code:?}"));
        run.promised(format!("{service} exited with code 0"), code == Some(0));
        sleep(run.outage).await;
        processes.start_again(service).await?;
        processes.wait_ready(CONDITION_DEADLINE).await?;
        sleep(run.outage).await;
    }
    Ok(())
}

/// Kills the owner of each partition in turn, and measures by the database's clock when the next event of that partition was
/// applied.
async fn kill_owners(run: &DrillRun<'_>) -> Result<()> {
    let processes = &run.system.own()?.processes;
    for partition in 0..PARTITIONS {
        let queue = format!("inventory.events.{partition}of{PARTITIONS}");
        let active = format!("broker_consumer_active{{queue=\"{queue}\"}}");
        let owner = eventually("a partition to have an owner", CONDITION_DEADLINE, async || {
            for name in ["inventory", "inventory-2"] {
                if run.system.metric(name, &active).await? == 1.0 {
                    return Ok(Some(name));
                }
            }
            Ok(None)
        })
        .await?;
        processes.kill(owner).await?;
        // After its end: what is applied from here on, another instance applies.
        let killed_at = run.system.read("select clock_timestamp()::text").await?;
        run.phase("outage", format!("{owner}, which had {queue}, was killed"));
        let applied = format!(
            "select coalesce(extract(epoch from min(processed_at) - '{killed_at}')::text, '')
             from inventory.processed_events join orders.outbox using (event_id)
             where lane % {PARTITIONS} = {partition} and processed_at > '{killed_at}'"
        );
        run.seen_promised("another instance applies an event of the partition", async || {
            let seconds = run.system.read(&applied).await?.trim().parse::<f64>().ok();
            Ok(seconds.map(|seconds| format!("{queue} was taken over {seconds:.2} s after the kill")))
        })
        .await;
        sleep(run.outage).await;
        processes.start_again(owner).await?;
        processes.wait_ready(CONDITION_DEADLINE).await?;
    }
    Ok(())
}

/// The steps of `docs/operations.md#partitions`, after an attempt without them.
async fn change_partitions(run: &DrillRun<'_>) -> Result<()> {
    let processes = &run.system.own()?.processes;
    processes.set_for_services("PARTITIONS", "4");
    processes.terminate("inventory").await?;
    processes.start_again("inventory").await?;
    let refused = eventually("a service with another number to end", CONDITION_DEADLINE, async || {
        Ok(processes.pid("inventory").is_none().then_some(()))
    });
    run.promised(
        "inventory with 4 partitions has refused to start beside the others with 1",
        refused.await.is_ok(),
    );

    processes.set_for_services("PARTITIONS", "1");
    drain_queues(run).await?;
    run.accepted_meanwhile().await;

    processes.set_for_services("PARTITIONS", "4");
    processes.set_for_services("RELAY_WORKERS", "2");
    start_all_again(run).await?;
    run.phase("four", "all services run with 4 partitions");
    run.until_promised("billing consumes several partitions", async || {
        Ok(run.system.metric("billing", "broker_consumer_active").await? > 1.0)
    })
    .await;
    Ok(())
}

/// Starts all services without relays, and waits until they have consumed all messages. Orders are accepted.
pub(super) async fn drain_queues(run: &DrillRun<'_>) -> Result<()> {
    let processes = &run.system.own()?.processes;
    processes.set_for_services("RELAY_WORKERS", "0");
    for service in SERVICES {
        if processes.pid(service).is_some() {
            processes.terminate(service).await?;
        }
        processes.start_again(service).await?;
    }
    processes.wait_ready(CONDITION_DEADLINE).await?;
    run.phase("drain", "no relay publishes; orders are accepted");
    for service in SERVICES {
        let ready = format!("broker_queue_ready{{queue=\"{service}.events\"}}");
        run.until_injected(&format!("{service}.events is empty"), async || {
            Ok(run.system.metric(service, &ready).await? == 0.0)
        })
        .await;
    }
    Ok(())
}

/// Stops all services, and starts them with their new settings.
pub(super) async fn start_all_again(run: &DrillRun<'_>) -> Result<()> {
    let processes = &run.system.own()?.processes;
    for service in SERVICES {
        processes.terminate(service).await?;
    }
    for service in SERVICES {
        processes.start_again(service).await?;
    }
    processes.wait_ready(CONDITION_DEADLINE).await
}

async fn stall_log_reader(run: &DrillRun<'_>) -> Result<()> {
    let stalled = run.inject(&Fault::StallLogReader("orders")).await?;
    let accepted = run.wait_outage().await;
    let alive = http::get(&format!("{}/livez", run.system.orders_url())).await;
    let dropped = run.system.metric("orders", "log_lines_dropped_total").await.unwrap_or_default();
    run.repair(stalled).await?;
    let processes = &run.system.own()?.processes;
    run.until_promised("a line says how many lines were dropped", async || {
        Ok(processes.log("orders")?.contains("log lines dropped"))
    })
    .await;
    run.injected(format!("{dropped} lines were dropped"), dropped > 0.0);
    run.promised(format!("{accepted} orders were accepted meanwhile"), accepted > 0);
    run.promised("/livez answered meanwhile", alive.is_ok());
    Ok(())
}

async fn scale(run: &DrillRun<'_>) -> Result<()> {
    let processes = &run.system.own()?.processes;
    run.stop_load().await?;
    for name in OTHERS {
        processes.terminate(name).await?;
    }
    run.steady().await?;
    for name in OTHERS {
        processes.start_again(name).await?;
    }
    processes.wait_ready(CONDITION_DEADLINE).await?;
    run.phase("four", "three more order services run");
    run.seen_promised("another instance publishes too", async || {
        let mut others = 0.0;
        for name in OTHERS {
            others += run.system.metric(name, "outbox_published_total").await?;
        }
        Ok((others > 0.0).then(|| format!("the other instances have published {others} events")))
    })
    .await;
    sleep(run.outage).await;
    for name in OTHERS {
        let code = processes.terminate(name).await?;
        run.promised(format!("{name} was stopped with exit code 0"), code == Some(0));
    }
    run.phase("one", "one order service runs");
    sleep(run.outage).await;
    Ok(())
}

/// Rolls back to the previous release, process by process, and forward again. A second instance is killed, so that the
/// other release receives what it has not acknowledged or marked.
async fn roll(run: &DrillRun<'_>) -> Result<()> {
    let processes = &run.system.own()?.processes;
    let previous = paths::previous_release();
    let back = match &previous {
        Some(directory) => format!("the previous release, in {}", directory.display()),
        None => format!("this release, because {} is not set", paths::PREVIOUS_RELEASE),
    };
    for (release, directory) in [(back.as_str(), previous.as_deref()), ("this release", None)] {
        for name in processes.names().filter(|name| *name != "provider") {
            if name.ends_with("-2") {
                processes.kill(name).await?;
            } else {
                let code = processes.terminate(name).await?;
                ensure!(code == Some(0), "{name} was asked to stop, and exited with {code:?}");
            }
            match directory {
                Some(directory) => processes.start_again_from(directory, name).await?,
                None => processes.start_again(name).await?,
            }
            processes.wait_ready(CONDITION_DEADLINE).await?;
            run.phase("roll", format!("{name} is of {release}"));
            sleep(run.outage).await;
        }
        run.accepted_meanwhile().await;
    }
    Ok(())
}

async fn write_silently(run: &DrillRun<'_>) -> Result<()> {
    run.stop_load().await?;
    // Nothing else is published from here on, so that nothing else wakes a relay.
    let settled = run.settled().await?;
    ensure!(settled.in_progress() == 0, "the orders of the load did not end: {}", settled.progress());
    let mut writer = run.system.connect("orders").await?;
    let original = run.system.read("select id::text from orders.orders order by placed_at limit 1").await?;
    let original = original.trim().parse().context("there is no order to copy")?;
    let mut transaction = writer.begin().await?;
    for _ in 0..SILENT {
        run.acknowledge(copy_order(&mut transaction, original).await?);
    }
    transaction.commit().await?;
    run.phase("silence", format!("another program wrote {SILENT} orders, and notified no relay"));
    let pending = "select count(*)::text from orders.outbox where published_at is null";
    let left: u64 = run.system.number(pending).await?;
    run.injected(format!("{left} of their events waited for the poll"), left > 0);
    let polled = within("the events to be found by the poll", FOUND_WITHIN, async || {
        Ok((run.system.number::<u64>(pending).await? == 0).then_some(()))
    })
    .await;
    run.promised("the poll has found the events in time", polled.is_ok());
    Ok(())
}
