//! The faults of the soak: a table of kinds, and how each is drawn and injected.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::ops::Range;
use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;
use fault_proxy::{Direction, Effect};
use testbed::eventually;
use tokio::time::sleep;
use uuid::Uuid;

use crate::fault::{Fault, REFUSED_MARKS, ROUTES, UNROUTABLE_EVENTS, publish_copy};
use crate::lab::{CONDITION_DEADLINE, Tap};
use crate::part::{BROKER, DATABASE, SERVICES};
use crate::running_system::RunningSystem;

/// A kind of fault. Each is injected once in a round.
pub(super) struct Kind {
    pub(super) name: &'static str,
    draw: Draw,
}

/// How a fault of a kind is drawn.
enum Draw {
    /// Always the same, for as many milliseconds.
    One(Fault<'static>, Range<u64>),
    /// Both, and the second ends first.
    Both([Fault<'static>; 2], Range<u64>),
    /// A fault of any process.
    Process(for<'a> fn(&'a str) -> Fault<'a>, Range<u64>),
    /// An effect on any route. It ends by itself, while other faults begin.
    Route(fn(&mut Rng) -> Effect, Direction),
    /// A message for any service that can never be applied.
    Poison,
    /// The last events again, shuffled.
    Copies,
    /// Inventory's queue is deleted behind the messages that its consumer has buffered.
    DeletedQueue,
}

/// How long a process or a server is frozen, and how long a network fault lasts, in milliseconds.
const FREEZE: Range<u64> = 1_000..8_000;
const NETWORK_FAULT: Range<u64> = 1_000..10_000;
const AT_ONCE: Range<u64> = 0..1;
/// RabbitMQ 3.10, killed and started again within a second or two, may come back without a leader for a queue.
const BROKER_PAUSE: Range<u64> = 3_000..3_001;
const DELAY: Duration = Duration::from_millis(100);
const NARROW: NonZeroU32 = NonZeroU32::new(4_096).expect("not zero");

pub(super) static KINDS: [Kind; 23] = [
    kind("process killed", Draw::Process(|name| Fault::Kill(name), AT_ONCE)),
    kind("PostgreSQL killed", Draw::One(Fault::Kill(DATABASE), AT_ONCE)),
    kind("RabbitMQ killed", Draw::One(Fault::Kill(BROKER), BROKER_PAUSE)),
    kind("process frozen", Draw::Process(|name| Fault::Freeze(name), FREEZE)),
    kind("PostgreSQL frozen", Draw::One(Fault::Freeze(DATABASE), FREEZE)),
    kind("RabbitMQ frozen", Draw::One(Fault::Freeze(BROKER), FREEZE)),
    kind("route cut", Draw::Route(|_| Effect::Cut, Direction::Both)),
    kind("connections reset after some bytes", Draw::Route(reset_after, Direction::Both)),
    kind("route silent", Draw::Route(|_| Effect::BlackHole, Direction::Both)),
    kind("route silent in one direction", Draw::Route(|_| Effect::BlackHole, Direction::TowardClient)),
    kind("route slow", Draw::Route(|_| Effect::Delay(DELAY), Direction::Both)),
    kind("route narrow", Draw::Route(|_| Effect::Trickle { bytes_per_second: NARROW }, Direction::Both)),
    kind("connections closed by RabbitMQ", Draw::One(Fault::CloseConnections { of_all: false }, AT_ONCE)),
    kind("sessions ended by PostgreSQL", Draw::One(Fault::TerminateSessions, AT_ONCE)),
    kind("payment provider failing", Draw::One(FAILING_PROVIDER, FREEZE)),
    kind("bad message", Draw::Poison),
    kind("events published again, shuffled", Draw::Copies),
    kind("queue deleted behind deliveries", Draw::DeletedQueue),
    // Refused publishes, by `basic.nack`.
    kind("queue full", Draw::Both([Fault::Lock("billing.payments"), Fault::FullQueue("billing")], FREEZE)),
    kind("thousands of events refused", Draw::One(UNROUTABLE_EVENTS, FREEZE)),
    kind("marks refused by a full disk", Draw::One(REFUSED_MARKS, FREEZE)),
    kind("commits waiting for a standby", Draw::One(Fault::HangCommits, FREEZE)),
    kind("logs not read", Draw::Process(|name| Fault::StallLogReader(name), FREEZE)),
];

const fn kind(name: &'static str, draw: Draw) -> Kind {
    Kind { name, draw }
}

const FAILING_PROVIDER: Fault<'_> = Fault::Provider {
    what: "errors before and after the charge, and answers that are late",
    faults: r#"[{ "fault": "error-after", "percent": 20 }, { "fault": "error-before", "percent": 20 },
                { "fault": "slow", "percent": 20, "milliseconds": 500 }]"#,
};

fn reset_after(random: &mut Rng) -> Effect {
    Effect::ResetAfter { bytes: random.u64(1..20_000) }
}

/// Injects faults into one system, and counts the messages that it adds itself.
pub(super) struct Injector<'a> {
    pub(super) system: &'a RunningSystem,
    pub(super) random: Rng,
    /// The ids of messages that can never be applied. Whether one whose request failed was published is unknown.
    pub(super) poison: HashSet<String>,
    /// Copies of events, published with their ids.
    pub(super) copies: u64,
}

impl Injector<'_> {
    /// Injects a fault. Returns when it is over, except for faults of the network, which end by themselves.
    pub(super) async fn inject(&mut self, kind: &Kind, tap: &Tap) -> Result<()> {
        match &kind.draw {
            Draw::One(fault, lasts) => self.inject_for(fault, lasts).await,
            Draw::Both([first, second], lasts) => {
                let injected = first.inject(self.system).await?;
                let ended = self.inject_for(second, lasts).await;
                injected.repair(self.system).await?;
                ended
            }
            Draw::Process(fault, lasts) => {
                let names: Vec<_> = self.system.processes()?.names().collect();
                let name = names[self.random.usize(..names.len())];
                self.inject_for(&fault(name), lasts).await
            }
            Draw::Route(effect, direction) => {
                let route = ROUTES[self.random.usize(..ROUTES.len())];
                let effect = effect(&mut self.random);
                let (direction, lasts) = (*direction, self.time(&NETWORK_FAULT));
                let fault = Fault::Network { what: kind.name, routes: &[route], effect, direction, lasts };
                fault.inject(self.system).await.map(drop)
            }
            Draw::Poison => {
                let service = SERVICES[self.random.usize(..SERVICES.len())];
                self.publish_poison(service).await.map(drop)
            }
            Draw::Copies => {
                let (api, mut messages) = (self.system.broker_api()?, tap.recent());
                self.random.shuffle(&mut messages);
                for message in messages {
                    publish_copy(&api, &message, None).await?;
                    self.copies += 1;
                }
                Ok(())
            }
            Draw::DeletedQueue => self.cancel_consumer(tap).await,
        }
    }

    async fn inject_for(&mut self, fault: &Fault<'_>, lasts: &Range<u64>) -> Result<()> {
        let lasts = self.time(lasts);
        let injected = fault.inject(self.system).await?;
        sleep(lasts).await;
        injected.repair(self.system).await.map(drop)
    }

    fn time(&mut self, range: &Range<u64>) -> Duration {
        Duration::from_millis(self.random.u64(range.clone()))
    }

    /// Returns the message's id.
    async fn publish_poison(&mut self, service: &str) -> Result<String> {
        let id = Uuid::now_v7().to_string();
        self.poison.insert(id.clone());
        self.system.broker_api()?.publish(&format!("{service}.events"), "not json", &id).await?;
        Ok(id)
    }

    /// Deletes inventory's queue behind messages that its consumer has buffered. Nothing is published meanwhile, and the
    /// messages are copies: what the queue loses has been applied, and no cancellation overtakes a lost creation.
    async fn cancel_consumer(&mut self, tap: &Tap) -> Result<()> {
        let processes = self.system.processes()?;
        let orders: Vec<_> = processes.names().filter(|name| name.starts_with("orders")).collect();
        orders.iter().try_for_each(|name| processes.pause(name))?;
        let deleted = self.delete_queue(tap).await;
        orders.iter().try_for_each(|name| processes.resume(name))?;
        deleted
    }

    async fn delete_queue(&mut self, tap: &Tap) -> Result<()> {
        // A queue is read in its order: once a bad message is set aside, all before it are applied.
        let last = self.publish_poison("inventory").await?;
        let saved = format!("select count(*)::text from inventory.dead_letters where message_id = '{last}'");
        eventually("inventory to set aside the last message", CONDITION_DEADLINE, async || {
            Ok((self.system.read(&saved).await? != "0").then_some(()))
        })
        .await?;
        let locked = Fault::Lock("inventory.processed_events").inject(self.system).await?;
        let api = self.system.broker_api()?;
        for message in tap.recent().iter().filter(|message| message["routing_key"] == "order.created") {
            let payload = message["payload"].as_str().unwrap_or_default();
            api.publish_as("amq.default", "inventory.events", payload, &message["properties"]).await?;
        }
        api.delete("queues/shop/inventory.events").await?;
        // A consumer that misses the end finds a healthy queue when the lock is released.
        api.await_bindings().await?;
        locked.repair(self.system).await.map(drop)
    }
}
