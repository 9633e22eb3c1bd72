//! What an operator of RabbitMQ can do by mistake: close connections, delete bindings, the exchange or a queue.

use std::time::Duration;

use anyhow::Result;
use sqlx::{Connection as _, PgConnection};

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::lab::{BrokerApi, Setup};
use crate::own_system::OwnSystem;
use crate::set_aside::publish_again;

pub(in crate::drills) const CONNECTIONS: Drill = Drill {
    name: "connections-closed",
    group: Group::Broker,
    teaches: "What was sent and not confirmed before a connection ended has an unknown outcome: send it again.",
    question: "All connections are closed three times under load. Which messages are lost, and which come twice?",
    claim: "Closed connections are opened again by themselves. No order fails, nothing is lost, and copies change nothing.",
    outage: Duration::from_secs(3),
    system: Subject::Own(OwnSystem::default),
    run: |run| Box::pin(close_connections(run)),
};

pub(in crate::drills) const BINDINGS: Drill = Drill {
    name: "bindings-deleted",
    group: Group::Broker,
    teaches: "An exchange drops what no queue is bound for, silently. The mandatory flag makes it return such a message.",
    question: "The exchange has no binding any more. The broker confirms what it drops: how does the relay know?",
    claim: "Without bindings no event counts as published. The relay restores the bindings, and everything arrives once.",
    outage: Duration::from_secs(2),
    system: Subject::Own(one_relay),
    run: |run| Box::pin(delete_bindings(run)),
};

pub(in crate::drills) const EXCHANGE: Drill = Drill {
    name: "exchange-deleted",
    group: Group::Broker,
    teaches: "Publishers declare what they need. A broker that lost its topology gets it back from the next publisher.",
    question: "The exchange is deleted under load, and its bindings with it. Who creates them again?",
    claim: "A deleted exchange is declared again with all bindings before anything is published to it. Nothing is lost.",
    outage: Duration::from_secs(3),
    system: Subject::Own(one_relay),
    run: |run| Box::pin(delete_exchange(run)),
};

pub(in crate::drills) const QUEUE: Drill = Drill {
    name: "consumer-cancelled",
    group: Group::Broker,
    teaches: "A broker can end a subscription and leave the connection open. Its last word comes behind the messages that it \
              has delivered.",
    question: "Inventory's queue is deleted while messages wait in the client's memory. Who creates it again, and who reads it?",
    claim: "The consumer notices the end behind the buffered messages and reads the new queue. What was lost with the old one \
            is published again, and applied once.",
    outage: Duration::from_secs(2),
    system: Subject::Own(OwnSystem::default),
    run: |run| Box::pin(delete_queue(run)),
};

/// The events that inventory should have applied by now, and has not.
const UNAPPLIED: &str = "
    select coalesce(json_agg(event_id), '[]')::text from orders.outbox event
    where event_type in ('OrderCreated', 'OrderCancelled') and created_at < clock_timestamp() - interval '1 second'
      and not exists (select from inventory.processed_events done where done.event_id = event.event_id)";

const TIMES: usize = 3;

/// While a relay restores one binding after the other, a second one could publish to the first queue alone
/// (docs/guarantees.md). So the order service has one relay, and the other services are frozen meanwhile.
fn one_relay() -> OwnSystem {
    let setup = Setup::default().with("ORDERS_RELAY_WORKERS", "1");
    OwnSystem { setup, ..OwnSystem::default() }
}

fn api(run: &DrillRun<'_>) -> Result<BrokerApi> {
    BrokerApi::new(run.own()?.rabbitmq.api_url(), "shop")
}

async fn close_connections(run: &DrillRun<'_>) -> Result<Report> {
    let api = api(run)?;
    let load = run.steady().await;
    let mut facts = vec![];
    for _ in 0..TIMES {
        api.await_connections().await?;
        let closed = api.close_connections().await?;
        run.phase("close", format!("closed {closed} connections"));
        facts.push(Fact { what: format!("{closed} connections were closed"), observed: closed >= 9 });
        facts.push(run.accepted_meanwhile().await);
    }
    let summary = run.end(load).await?;
    run.report(facts, summary, Refusals::BreakTheClaim).await
}

async fn delete_bindings(run: &DrillRun<'_>) -> Result<Report> {
    let (api, own) = (api(run)?, run.own()?);
    let load = run.steady().await;
    for service in ["orders", "inventory", "billing"] {
        own.processes.pause(service)?;
    }
    api.delete_bindings().await?;
    own.processes.resume("orders")?;
    run.phase("outage", "deleted all ten bindings while the services were frozen; orders continues");
    let returned = run
        .felt("a message was returned as unroutable", async || {
            let failed = run.system.metric("orders", "outbox_failed_total").await?;
            Ok((failed > 0.0).then(|| format!("{failed} messages were returned as unroutable")))
        })
        .await;
    api.await_bindings().await?;
    own.processes.resume("inventory")?;
    own.processes.resume("billing")?;
    let accepted = run.accepted_meanwhile().await;
    let summary = run.end(load).await?;
    run.report(vec![returned, accepted], summary, Refusals::AreExpected).await
}

async fn delete_exchange(run: &DrillRun<'_>) -> Result<Report> {
    let (api, own) = (api(run)?, run.own()?);
    let load = run.steady().await;
    let mut facts = vec![];
    for _ in 0..TIMES {
        own.processes.pause("inventory")?;
        own.processes.pause("billing")?;
        api.delete("exchanges/shop/shop.events").await?;
        run.phase("delete", "deleted the exchange with its bindings, while only orders runs");
        facts.push(run.accepted_meanwhile().await);
        api.await_bindings().await?;
        own.processes.resume("inventory")?;
        own.processes.resume("billing")?;
        facts.push(Fact { what: "the exchange and its ten bindings exist again".to_owned(), observed: true });
    }
    let summary = run.end(load).await?;
    run.report(facts, summary, Refusals::BreakTheClaim).await
}

/// The lock is held until the queue exists again: a consumer that missed the end finds a healthy queue from then on.
/// Billing is frozen, so that it declines no payment: the cancellation would reach the new queue, and be applied before the
/// creation that was lost with the old one.
async fn delete_queue(run: &DrillRun<'_>) -> Result<Report> {
    let (api, own) = (api(run)?, run.own()?);
    let load = run.steady().await;
    own.processes.pause("billing")?;
    let mut operator = PgConnection::connect(&run.system.addresses()?.admin_url).await?;
    let mut lock = operator.begin().await?;
    sqlx::query("lock table inventory.reservations in access exclusive mode").execute(&mut *lock).await?;
    run.phase("lock", "locked inventory's reservations: messages wait in the consumer's memory");
    let accepted = run.accepted_meanwhile().await;
    api.delete("queues/shop/inventory.events").await?;
    run.phase("delete", "deleted inventory's queue behind them");
    api.await_bindings().await?;
    lock.rollback().await?;
    let summary = run.end(load).await?;
    let again = publish_again(run.system, UNAPPLIED).await?;
    run.phase("replay", format!("published {again} events again that inventory has not applied"));
    let applied = run
        .felt("inventory has applied all events", async || {
            let all = run.system.read(UNAPPLIED).await? == "[]";
            Ok(all.then(|| "inventory has applied all events".to_owned()))
        })
        .await;
    own.processes.resume("billing")?;
    let lost = Fact { what: format!("{again} events were lost with the queue"), observed: again > 0 };
    let mut report = run.report(vec![accepted, lost], summary, Refusals::BreakTheClaim).await?;
    report.claim(applied);
    Ok(report)
}
