//! Processes that end, or freeze, between two steps. The lab programs mark these places with crash points.

use std::time::Duration;

use anyhow::{Context as _, Result};
use testbed::eventually;
use tokio::time::sleep;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::lab::{CONDITION_DEADLINE, resume_process};
use crate::own_system::OwnSystem;

/// How long a process that killed itself stays down.
const DOWN: Duration = Duration::from_secs(2);

pub(in crate::drills) const ORDER_BEFORE_COMMIT: Drill = Drill {
    name: "order-killed-before-commit",
    teaches: "What is not committed was never promised: the client has no 201, and nothing has to be cleaned up.",
    question: "The order service dies after it has read and priced an order. What is left of that order?",
    claim: "An order whose process dies before the commit leaves nothing behind, in no service.",
    ..crash(|| at("orders", "order-unwritten:kill"))
};

pub(in crate::drills) const ORDER_AFTER_COMMIT: Drill = Drill {
    name: "order-killed-after-commit",
    teaches: "The row in the outbox is enough: no wake-up, no answer and no process has to survive.",
    question: "The order service dies after the commit, before its relay is woken and before the client is answered. \
               Does the order go on?",
    claim: "An order whose process dies right after the commit is published and ends like any other, also without a 201.",
    ..crash(|| at("orders", "order-written:kill"))
};

pub(in crate::drills) const RELAY_AFTER_CONFIRM: Drill = Drill {
    name: "relay-killed-after-confirm",
    teaches: "Publish, then mark. In between lies a crash, and so a copy; the other order of steps would lose the event.",
    question: "The broker has confirmed an event, and the relay dies before it marks it. What will the next relay do?",
    claim: "Events that were confirmed and not marked are published again under the same ids, and change nothing.",
    ..crash(|| at("orders", "relay-confirmed:kill"))
};

pub(in crate::drills) const CONSUMER_BEFORE_COMMIT: Drill = Drill {
    name: "consumer-killed-before-commit",
    teaches: "The record \"processed\" and the effect are one transaction: they are both there, or neither.",
    question: "A consumer dies after it has written an effect, before the commit. Is the message lost, or applied twice?",
    claim: "An effect that was not committed is undone, its message is delivered again, and it happens once.",
    ..crash(|| at("inventory", "effect-written:kill"))
};

pub(in crate::drills) const CONSUMER_AFTER_COMMIT: Drill = Drill {
    name: "consumer-killed-after-commit",
    teaches: "Commit, then acknowledge. A message that comes again is recognised by its id.",
    question: "A consumer dies after the commit, before it acknowledges. The broker delivers again: what happens?",
    claim: "Messages that were committed and not acknowledged are delivered again, recognised, and change nothing.",
    ..crash(|| at("inventory", "effect-committed:kill"))
};

pub(in crate::drills) const BILLING_AFTER_CHARGE: Drill = Drill {
    name: "billing-killed-after-charge",
    teaches: "A call to another company cannot be part of a transaction. Ask again under the same key.",
    question: "The provider has charged the customer, and billing dies before it writes that down. Is he charged twice?",
    claim: "A charge whose answer was lost with its process is asked for again under the same key: one charge, one answer.",
    ..crash(|| at("billing", "payment-answered:kill"))
};

pub(in crate::drills) const RELAY_FROZEN: Drill = Drill {
    name: "relay-frozen",
    teaches: "A lock that outlives its holder has to end by a time-out of the server: the holder cannot give it back.",
    question: "A relay freezes while it holds lanes, for longer than half a minute. Who publishes the events of these lanes?",
    claim: "The database ends the frozen relay's transaction after 30 s, and another one publishes its events. What the \
            first does when it continues changes nothing.",
    outage: Duration::from_secs(35),
    run: |run| Box::pin(freeze_relay(run)),
    ..crash(|| {
        let mut own = at("orders", "relay-claimed:freeze");
        own.setup.instances.orders = 2;
        own
    })
};

/// What these drills have in common: a kill at the crash point.
const fn crash(own: fn() -> OwnSystem) -> Drill {
    Drill {
        name: "",
        group: Group::Service,
        teaches: "",
        question: "",
        claim: "",
        outage: DOWN,
        system: Subject::Own(own),
        run: |run| Box::pin(kill_at_the_point(run)),
    }
}

fn at(service: &'static str, point: &'static str) -> OwnSystem {
    OwnSystem { crash_point: Some((service, point)), ..OwnSystem::default() }
}

/// Waits for the process that reaches the point. Returns its name and its id.
async fn reached(run: &DrillRun<'_>) -> Result<(String, u32)> {
    let crash = run.tools()?.crash()?;
    let processes = &run.own()?.processes;
    let before: Vec<_> =
        processes.names().filter_map(|name| Some((name.to_owned(), processes.pid(name)?))).collect();
    crash.arm()?;
    let pid = crash.process().await?;
    let name = before.into_iter().find(|(_, known)| *known == pid);
    Ok((name.context("an unknown process has reached the crash point")?.0, pid))
}

async fn kill_at_the_point(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    let (name, pid) = reached(run).await?;
    let processes = &run.own()?.processes;
    eventually(&format!("{name} to be gone"), CONDITION_DEADLINE, async || {
        Ok(processes.pid(&name).is_none().then_some(()))
    })
    .await?;
    run.phase("killed", format!("process {pid} ({name}) has killed itself at the crash point"));
    sleep(run.outage).await;
    processes.start_again(&name).await?;
    processes.wait_ready(CONDITION_DEADLINE).await?;
    let fact = Fact {
        what: format!("process {pid} of {name} killed itself, and another one was started"),
        observed: processes.pid(&name).is_some_and(|now| now != pid),
    };
    let summary = run.end(load).await?;
    run.report(vec![fact], summary, Refusals::AreExpected).await
}

async fn freeze_relay(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    let (name, pid) = reached(run).await?;
    run.phase("frozen", format!("process {pid} ({name}) has stopped itself while it holds lanes"));
    let age = |seconds: u32| {
        format!(
            "select (count(*) filter (where state = 'idle in transaction'
                        and state_change < now() - interval '{seconds} s'))::text
             from pg_stat_activity where usename in ('orders', 'inventory', 'billing')"
        )
    };
    let holds = run
        .felt("a session holds its transaction for ten seconds", async || {
            let held: u32 = run.system.read(&age(10)).await?.trim().parse()?;
            Ok((held > 0).then(|| "the frozen relay's transaction is open for ten seconds".to_owned()))
        })
        .await;
    sleep(run.outage.saturating_sub(Duration::from_secs(10))).await;
    let left: u32 = run.system.read(&age(10)).await?.trim().parse()?;
    let ended = Fact { what: "the server has ended that transaction".to_owned(), observed: left == 0 };
    resume_process(pid)?;
    let summary = run.end(load).await?;
    run.report(vec![holds, ended], summary, Refusals::AreExpected).await
}
