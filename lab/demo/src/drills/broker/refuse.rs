//! The broker answers, and takes nothing: a memory alarm, a refused password, a queue that confirms nothing.

use std::time::Duration;

use anyhow::Result;
use testbed::Rabbitmq;
use tokio::time::sleep;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::lab::BrokerApi;
use crate::own_system::OwnSystem;
use crate::sql_faults::{ERASE_UNROUTABLE, WRITE_UNROUTABLE};

pub(in crate::drills) const ALARM: Drill = Drill {
    name: "broker-alarm",
    group: Group::Broker,
    teaches: "A broker under pressure stops reading from publishers. The backlog belongs on disk, not in memory.",
    question: "RabbitMQ raises its memory alarm and blocks publishers. Do clients notice? Where do the events wait?",
    claim: "Orders are accepted while RabbitMQ blocks its publishers. Their events wait in the outbox, and arrive once.",
    outage: Duration::from_secs(10),
    system: Subject::Own(OwnSystem::default),
    run: |run| Box::pin(alarm(run)),
};

pub(in crate::drills) const PASSWORD: Drill = Drill {
    name: "broker-password",
    group: Group::Broker,
    teaches: "Refused credentials are an outage like any other: wait, try again, lose nothing.",
    question: "The password is changed in the middle of the load, and all connections are closed. Who has to be restarted?",
    claim: "Orders are accepted while RabbitMQ refuses the services' password. When it is right again, everything \
            arrives once, and no process was restarted.",
    outage: Duration::from_secs(10),
    system: Subject::Own(OwnSystem::default),
    run: |run| Box::pin(password(run)),
};

pub(in crate::drills) const STUCK_QUEUE: Drill = Drill {
    name: "queue-stuck",
    group: Group::Broker,
    teaches: "A confirm comes when every queue has the message. Without one the outcome is unknown, and the event stays.",
    question: "One of three queues stops confirming. What happens to the events for the other two?",
    claim: "While billing's queue confirms nothing, orders are accepted and no event counts as published. Everything \
            arrives once after it works again.",
    outage: Duration::from_secs(15),
    system: Subject::Own(OwnSystem::default),
    run: |run| Box::pin(stuck_queue(run)),
};

pub(in crate::drills) const UNROUTABLE: Drill = Drill {
    name: "unroutable-burst",
    group: Group::Broker,
    teaches: "An event that the broker refuses says nothing about the broker. It waits by itself, and no other waits with it.",
    question: "Four thousand events that no queue wants are written into the outbox. How many good ones are published beside \
               them?",
    claim: "Beside thousands of refused events, at least 80 % as many good ones are published as without them, and their \
            orders end.",
    outage: Duration::from_secs(10),
    system: Subject::Own(OwnSystem::default),
    run: |run| Box::pin(write_unroutable(run)),
};

async fn alarm(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    let broker = &run.own()?.rabbitmq;
    broker.set_memory_limit("1").await?;
    run.phase("outage", "RabbitMQ raised its memory alarm, and reads nothing from publishers");
    let blocked = run.pending_grow(2 * run.rate).await;
    let accepted = run.accepted_meanwhile().await;
    broker.set_memory_limit(Rabbitmq::NO_ALARM).await?;
    let summary = run.end(load).await?;
    run.report(vec![blocked, accepted], summary, Refusals::BreakTheClaim).await
}

async fn password(run: &DrillRun<'_>) -> Result<Report> {
    let own = run.own()?;
    let mut api = BrokerApi::new(own.rabbitmq.api_url(), "shop")?;
    api.create_operator().await?;
    let services = ["orders", "inventory", "billing"];
    let before = services.map(|service| own.processes.pid(service));
    let load = run.steady().await;
    api.await_connections().await?;
    api.change_password().await?;
    let closed = api.close_connections().await?;
    run.phase("outage", format!("changed the password, and closed {closed} connections"));
    let lost = run.lost_connection("orders", "publisher").await;
    let accepted = run.accepted_meanwhile().await;
    api.restore_password().await?;
    let summary = run.end(load).await?;
    let same = Fact {
        what: "the same three processes run as before".to_owned(),
        observed: services.map(|service| own.processes.pid(service)) == before,
    };
    run.report(vec![lost, accepted, same], summary, Refusals::BreakTheClaim).await
}

async fn stuck_queue(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    let broker = &run.own()?.rabbitmq;
    broker.suspend_queue("billing.events", true).await?;
    run.phase("outage", "billing's queue takes and confirms nothing");
    let unconfirmed = run.pending_grow(2 * run.rate).await;
    let accepted = run.accepted_meanwhile().await;
    broker.suspend_queue("billing.events", false).await?;
    let summary = run.end(load).await?;
    run.report(vec![unconfirmed, accepted], summary, Refusals::BreakTheClaim).await
}

async fn write_unroutable(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    let alone = published(run).await?;
    run.system.execute_as("orders", WRITE_UNROUTABLE).await?;
    run.phase("burst", "wrote 4000 events that no queue wants");
    let beside = published(run).await?;
    let refused = run.system.metric("orders", "outbox_failed_total").await?;
    // With an operator, they would be parked after twenty minutes, and then discarded.
    run.system.execute_as("orders", ERASE_UNROUTABLE).await?;
    let summary = run.end(load).await?;
    let refused = Fact {
        what: format!("{refused} publications were returned as unroutable"),
        observed: refused > 4000.0,
    };
    let mut report = run.report(vec![refused], summary, Refusals::BreakTheClaim).await?;
    report.claim(Fact {
        what: format!("{beside} good events were published beside them, and {alone} in the same time before"),
        observed: beside >= 0.8 * alone,
    });
    Ok(report)
}

/// How many events the order service publishes in the time of the outage.
async fn published(run: &DrillRun<'_>) -> Result<f64> {
    let count = async || run.system.metric("orders", "outbox_published_total").await;
    let before = count().await?;
    sleep(run.outage).await;
    Ok(count().await? - before)
}
