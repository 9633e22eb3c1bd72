//! What happens to RabbitMQ: it is killed, it refuses, and its operator makes mistakes.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::drill::{Drill, Group, Subject};
use super::drill_run::DrillRun;
use super::felt::{
    Felt,
    Figure::Metric,
    Limit::{Count, Seconds},
};
use super::report::Refusals;
use crate::fault::{Fault, UNROUTABLE_EVENTS};
use crate::lab::Setup;
use crate::own_system::OwnSystem;
use crate::part::BROKER;
use crate::set_aside::publish_again;

pub(super) static DRILLS: [Drill; 11] = [
    Drill {
        name: "broker-kill",
        teaches: "An order needs the database only. The outbox keeps its event until the broker has confirmed it.",
        question: "Are orders accepted while RabbitMQ is dead? What happens to them when it is back?",
        claim: "Orders are accepted while RabbitMQ is down. Every accepted order reaches inventory and billing, has \
                its effect there once, and is confirmed or cancelled by their answers.",
        outage: Duration::from_secs(20),
        faults: &[Fault::Kill(BROKER)],
        felt: &[Felt::Accepted],
        ..ROW
    },
    Drill {
        name: "broker-freeze",
        teaches: "A frozen peer closes no connection. Only heartbeats and deadlines notice it.",
        question: "RabbitMQ is stopped with SIGSTOP: its sockets stay open. How do the services know?",
        claim: "Orders are accepted while RabbitMQ is frozen, the services notice it, and everything arrives once \
                after it continues.",
        outage: Duration::from_secs(25),
        faults: &[Fault::Freeze(BROKER)],
        felt: &[Felt::Accepted, Felt::Disconnected("orders", "publisher")],
        ..ROW
    },
    Drill {
        name: "broker-alarm",
        teaches: "A broker under pressure stops reading from publishers. The backlog belongs on disk, not in memory.",
        question: "RabbitMQ raises its memory alarm and blocks publishers. Do clients notice? Where do the events \
                   wait?",
        claim: "Orders are accepted while RabbitMQ blocks its publishers. Their events wait in the outbox, and arrive \
                once.",
        system: Subject::Own(OwnSystem::default),
        faults: &[Fault::MemoryAlarm],
        felt: &[PENDING, Felt::Accepted],
        ..ROW
    },
    Drill {
        name: "broker-password",
        teaches: "Refused credentials are an outage like any other: wait, try again, lose nothing.",
        question: "The password is changed in the middle of the load, and all connections are closed. Who must be \
                   restarted?",
        claim: "Orders are accepted while RabbitMQ refuses the services' password. When it is right again, everything \
                arrives once, and no process was restarted.",
        system: Subject::Own(OwnSystem::default),
        faults: &[Fault::ChangePassword],
        felt: &[Felt::Disconnected("orders", "publisher"), Felt::Accepted],
        ..ROW
    },
    Drill {
        name: "queue-stuck",
        teaches: "A confirm comes when every queue has the message. Without one the outcome is unknown, and the event \
                  stays.",
        question: "One of three queues stops confirming. What happens to the events for the other two?",
        claim: "While billing's queue confirms nothing, orders are accepted and no event counts as published. \
                Everything arrives once after it works again.",
        outage: Duration::from_secs(15),
        system: Subject::Own(OwnSystem::default),
        faults: &[Fault::SuspendQueue("billing")],
        felt: &[PENDING, Felt::Accepted],
        ..ROW
    },
    Drill {
        name: "queue-full",
        teaches: "A negative acknowledgement is an answer, and no confirm. The event stays, and is tried again later.",
        question: "Billing's queue is full and refuses messages. What happens to the events that inventory has taken?",
        claim: "While billing's queue is full, orders are accepted, and no event that it refused counts as published. \
                Everything is applied once after it has room again.",
        outage: Duration::from_secs(6),
        faults: &[Fault::Lock("billing.payments"), Fault::FullQueue("billing")],
        felt: &[
            Felt::More(
                Count(0.0),
                Metric("orders", "outbox_failed_total"),
                "{} messages were negatively acknowledged",
            ),
            Felt::Accepted,
        ],
        system: Subject::Own(OwnSystem::default),
        ..ROW
    },
    Drill {
        name: "unroutable-burst",
        teaches: "An event that the broker refuses says nothing about the broker. It waits by itself, and no other \
                  waits with it.",
        question: "Four thousand events that no queue wants are written into the outbox. How many good ones are \
                   published beside them?",
        claim: "Beside thousands of refused events, at least 80 % as many good ones are published as without them, and \
                their orders end.",
        system: Subject::Own(OwnSystem::default),
        steps: Some(|run| Box::pin(write_unroutable(run))),
        ..ROW
    },
    Drill {
        name: "connections-closed",
        teaches: "What was sent and not confirmed before a connection ended has an unknown outcome: send it again.",
        question: "All connections are closed three times under load. Which messages are lost, and which come twice?",
        claim: "Closed connections are opened again by themselves. No order fails, nothing is lost, and copies change \
                nothing.",
        outage: Duration::from_secs(3),
        system: Subject::Own(OwnSystem::default),
        faults: &[Fault::CloseConnections { of_all: true }],
        times: 3,
        felt: &[Felt::Accepted],
        ..ROW
    },
    Drill {
        name: "bindings-deleted",
        teaches: "An exchange drops what no queue is bound for, silently. The mandatory flag makes it return such a \
                  message.",
        question: "The exchange has no binding any more. The broker confirms what it drops: how does the relay know?",
        claim: "Without bindings no event counts as published. The relay restores the bindings, and everything arrives \
                once.",
        outage: Duration::from_secs(2),
        system: Subject::Own(one_relay),
        faults: &[Fault::DeleteBindings],
        felt: &[
            Felt::More(
                Count(0.0),
                Metric("orders", "outbox_failed_total"),
                "{} messages were returned as unroutable",
            ),
            Felt::Accepted,
        ],
        refusals: Refusals::AreExpected,
        ..ROW
    },
    Drill {
        name: "exchange-deleted",
        teaches: "Publishers declare what they need. A broker that lost its topology gets it back from the next \
                  publisher.",
        question: "The exchange is deleted under load, and its bindings with it. Who creates them again?",
        claim: "A deleted exchange is declared again with all bindings before anything is published to it. Nothing is \
                lost.",
        outage: Duration::from_secs(3),
        system: Subject::Own(one_relay),
        faults: &[Fault::DeleteExchange],
        times: 3,
        felt: &[Felt::Accepted],
        ..ROW
    },
    Drill {
        name: "consumer-cancelled",
        teaches: "A broker can end a subscription and leave the connection open. Its last word comes behind the \
                  messages that it has delivered.",
        question: "Inventory's queue is deleted while messages wait in the client's memory. Who creates it again, and \
                   who reads it?",
        claim: "The consumer notices the end behind the buffered messages and reads the new queue. What was lost with \
                the old one is published again, and applied once.",
        outage: Duration::from_secs(2),
        system: Subject::Own(OwnSystem::default),
        steps: Some(|run| Box::pin(delete_queue(run))),
        cancels: false,
        ..ROW
    },
];

const ROW: Drill = Drill { group: Group::Broker, ..Drill::ROW };

/// The backlog of an outbox whose events are not confirmed.
pub(super) const PENDING: Felt =
    Felt::More(Seconds(2.0), Metric("orders", "outbox_pending"), "{} events wait in the outbox of orders");

/// The events that inventory should have applied by now, and has not.
const UNAPPLIED: &str = "
    select coalesce(json_agg(event_id), '[]')::text from orders.outbox event
    where event_type in ('OrderCreated', 'OrderCancelled') and created_at < clock_timestamp() - interval '1 second'
      and not exists (select from inventory.processed_events done where done.event_id = event.event_id)";

/// While a relay restores one binding after the other, a second one could publish to the first queue alone
/// (docs/guarantees.md). So the order service has one relay, and the other services are frozen meanwhile.
fn one_relay() -> OwnSystem {
    Setup::default().with("ORDERS_RELAY_WORKERS", "1").into()
}

async fn write_unroutable(run: &DrillRun<'_>) -> Result<()> {
    let alone = published(run).await?;
    let burst = run.inject(&UNROUTABLE_EVENTS).await?;
    let beside = published(run).await?;
    let refused = run.system.metric("orders", "outbox_failed_total").await?;
    // With an operator, they would be parked after twenty minutes, and then discarded.
    run.repair(burst).await?;
    run.injected(format!("{refused} publications were returned as unroutable"), refused > 4000.0);
    run.promised(
        format!("{beside} good events were published beside them, and {alone} in the same time before"),
        beside >= 0.8 * alone,
    );
    Ok(())
}

/// How many events the order service publishes in the time of the outage.
async fn published(run: &DrillRun<'_>) -> Result<f64> {
    let before = run.published().await?;
    sleep(run.outage).await;
    Ok(run.published().await? - before)
}

/// The lock is held until the queue exists again: a consumer that missed the end finds a healthy queue from then on.
/// Billing is frozen, so that it declines no payment: the cancellation would reach the new queue, and be applied before the
/// creation that was lost with the old one.
async fn delete_queue(run: &DrillRun<'_>) -> Result<()> {
    let (api, own) = (run.system.broker_api()?, run.system.own()?);
    own.processes.pause("billing")?;
    // Messages wait in the consumer's memory.
    let locked = run.inject(&Fault::Lock("inventory.reservations")).await?;
    run.accepted_meanwhile().await;
    api.delete("queues/shop/inventory.events").await?;
    run.phase("delete", "deleted inventory's queue behind them");
    api.await_bindings().await?;
    run.repair(locked).await?;
    run.end().await?;
    let again = publish_again(run.system, UNAPPLIED).await?;
    run.phase("replay", format!("published {again} events again that inventory has not applied"));
    run.injected(format!("{again} events were lost with the queue"), again > 0);
    run.until_promised("inventory has applied all events", async || {
        Ok(run.system.read(UNAPPLIED).await? == "[]")
    })
    .await;
    own.processes.resume("billing")
}
