//! The faults of the soak: what is drawn, how it is injected, and how it ends.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use fault_proxy::{Direction, Effect, Fault as NetworkFault};
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use testbed::eventually;
use tokio::time::sleep;
use uuid::Uuid;

use crate::http;
use crate::lab::{BrokerApi, CONDITION_DEADLINE, Tap};
use crate::local_system::LocalSystem;
use crate::own_system::{broker_route, database_route};
use crate::running_system::RunningSystem;
use crate::sql_faults::{ACCEPT_MARKS, ERASE_UNROUTABLE, REFUSE_MARKS, WRITE_UNROUTABLE, set_standby};
use crate::target::{Action, Target};

/// A kind of fault. Each is injected once in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    KillProcess,
    KillDatabase,
    KillBroker,
    FreezeProcess,
    FreezeDatabase,
    FreezeBroker,
    CutRoute,
    ResetConnections,
    BlackHole,
    OneWayBlackHole,
    SlowRoute,
    NarrowRoute,
    CloseConnections,
    TerminateSessions,
    ProviderFaults,
    Poison,
    Copies,
    CancelConsumer,
    RefuseEvents,
    FailMarks,
    HangCommits,
    StallLogReader,
}

/// RabbitMQ 3.10, killed and started again within a second or two, may come back without a leader for a queue.
const BROKER_PAUSE: Duration = Duration::from_secs(3);
/// How long a process or a server is frozen, and how long a network fault lasts, in milliseconds.
const FREEZE: Range<u64> = 1_000..8_000;
const NETWORK_FAULT: Range<u64> = 1_000..10_000;
/// Bytes until a connection is reset.
const RESET_AFTER: Range<u64> = 1..20_000;
const NARROW: NonZeroU32 = NonZeroU32::new(4_096).expect("not zero");
const DELAY: Duration = Duration::from_millis(100);
const SERVICES: [&str; 3] = ["orders", "inventory", "billing"];

impl Fault {
    pub(crate) const ALL: [Self; 22] = [
        Self::KillProcess,
        Self::KillDatabase,
        Self::KillBroker,
        Self::FreezeProcess,
        Self::FreezeDatabase,
        Self::FreezeBroker,
        Self::CutRoute,
        Self::ResetConnections,
        Self::BlackHole,
        Self::OneWayBlackHole,
        Self::SlowRoute,
        Self::NarrowRoute,
        Self::CloseConnections,
        Self::TerminateSessions,
        Self::ProviderFaults,
        Self::Poison,
        Self::Copies,
        Self::CancelConsumer,
        Self::RefuseEvents,
        Self::FailMarks,
        Self::HangCommits,
        Self::StallLogReader,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::KillProcess => "process killed",
            Self::KillDatabase => "PostgreSQL killed",
            Self::KillBroker => "RabbitMQ killed",
            Self::FreezeProcess => "process frozen",
            Self::FreezeDatabase => "PostgreSQL frozen",
            Self::FreezeBroker => "RabbitMQ frozen",
            Self::CutRoute => "route cut",
            Self::ResetConnections => "connections reset after some bytes",
            Self::BlackHole => "route silent",
            Self::OneWayBlackHole => "route silent in one direction",
            Self::SlowRoute => "route slow",
            Self::NarrowRoute => "route narrow",
            Self::CloseConnections => "connections closed by RabbitMQ",
            Self::TerminateSessions => "sessions ended by PostgreSQL",
            Self::ProviderFaults => "payment provider failing",
            Self::Poison => "bad message",
            Self::Copies => "events published again, shuffled",
            Self::CancelConsumer => "queue deleted behind deliveries",
            Self::RefuseEvents => "thousands of events refused",
            Self::FailMarks => "marks refused by a full disk",
            Self::HangCommits => "commits waiting for a standby",
            Self::StallLogReader => "logs not read",
        }
    }
}

/// Injects faults into one system, and counts the messages that it adds itself.
pub(crate) struct Injector<'a> {
    pub(crate) system: &'a RunningSystem,
    pub(crate) random: Rng,
    /// The ids of messages that can never be applied. Whether one whose request failed was published is unknown.
    pub(crate) poison: HashSet<String>,
    /// Copies of events, published with their ids.
    pub(crate) copies: u64,
}

impl Injector<'_> {
    /// Injects a fault. Returns when it is over, except for faults of the network, which end by themselves while others
    /// begin.
    pub(crate) async fn inject(&mut self, fault: Fault, tap: &Tap) -> Result<()> {
        let own = self.system.own()?;
        match fault {
            Fault::KillProcess => {
                let name = self.process(own);
                own.processes.kill(&name).await?;
                own.processes.start_again(&name).await
            }
            Fault::FreezeProcess => {
                let name = self.process(own);
                own.processes.pause(&name)?;
                sleep(self.time(FREEZE)).await;
                own.processes.resume(&name)
            }
            Fault::KillDatabase => kill(own, &Target::Database, Duration::ZERO).await,
            Fault::KillBroker => kill(own, &Target::Broker, BROKER_PAUSE).await,
            Fault::FreezeDatabase => self.freeze(own, &Target::Database).await,
            Fault::FreezeBroker => self.freeze(own, &Target::Broker).await,
            Fault::CutRoute => self.network(own, Effect::Cut, Direction::Both).await,
            Fault::ResetConnections => {
                let effect = Effect::ResetAfter { bytes: self.random.u64(RESET_AFTER) };
                self.network(own, effect, Direction::Both).await
            }
            Fault::BlackHole => self.network(own, Effect::BlackHole, Direction::Both).await,
            Fault::OneWayBlackHole => self.network(own, Effect::BlackHole, Direction::TowardClient).await,
            Fault::SlowRoute => self.network(own, Effect::Delay(DELAY), Direction::Both).await,
            Fault::NarrowRoute => {
                let effect = Effect::Trickle { bytes_per_second: NARROW };
                self.network(own, effect, Direction::Both).await
            }
            Fault::CloseConnections => broker_api(own)?.close_connections().await.map(drop),
            Fault::TerminateSessions => self.system.terminate_sessions().await,
            Fault::ProviderFaults => self.provider_faults(own).await,
            Fault::Poison => self.publish_poison(own).await,
            Fault::Copies => self.publish_copies(own, tap).await,
            Fault::CancelConsumer => self.cancel_consumer(own, tap).await,
            Fault::RefuseEvents => self.for_a_while(WRITE_UNROUTABLE, ERASE_UNROUTABLE).await,
            Fault::FailMarks => self.for_a_while(REFUSE_MARKS, ACCEPT_MARKS).await,
            Fault::HangCommits => {
                set_standby(self.system, "= 'ghost'").await?;
                sleep(self.time(FREEZE)).await;
                set_standby(self.system, "to default").await
            }
            Fault::StallLogReader => {
                let name = self.process(own);
                own.processes.pause_log_reader(&name)?;
                sleep(self.time(FREEZE)).await;
                own.processes.resume_log_reader(&name)
            }
        }
    }

    fn time(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.random.u64(range))
    }

    fn process(&mut self, own: &LocalSystem) -> String {
        let names: Vec<_> = own.processes.names().collect();
        names[self.random.usize(..names.len())].to_owned()
    }

    async fn freeze(&mut self, own: &LocalSystem, server: &Target) -> Result<()> {
        own.act(Action::Pause, server).await?;
        sleep(self.time(FREEZE)).await;
        own.act(Action::Resume, server).await
    }

    async fn for_a_while(&mut self, begin: &str, end: &str) -> Result<()> {
        self.system.execute_as("orders", begin).await?;
        sleep(self.time(FREEZE)).await;
        self.system.execute_as("orders", end).await
    }

    async fn network(&mut self, own: &LocalSystem, effect: Effect, direction: Direction) -> Result<()> {
        let service = SERVICES[self.random.usize(..SERVICES.len())];
        let route = if self.random.bool() { broker_route(service) } else { database_route(service) };
        let lasts = self.time(NETWORK_FAULT);
        own.tools()?.proxies.replace(&route, NetworkFault::new(effect, direction, lasts)).await
    }

    async fn provider_faults(&mut self, own: &LocalSystem) -> Result<()> {
        let url = format!("{}/faults", own.processes.url("provider")?);
        let set = async |faults: Value| -> Result<()> {
            let answer = http::client()?.put(&url).json(&faults).send().await?;
            ensure!(answer.status() == 200, "the provider's faults were answered with {}", answer.status());
            Ok(())
        };
        set(json!([
            { "fault": "error-after", "percent": 20 },
            { "fault": "error-before", "percent": 20 },
            { "fault": "slow", "percent": 20, "milliseconds": 500 },
        ]))
        .await?;
        sleep(self.time(FREEZE)).await;
        set(json!([])).await
    }

    async fn publish_poison(&mut self, own: &LocalSystem) -> Result<()> {
        let service = SERVICES[self.random.usize(..SERVICES.len())];
        self.publish_poison_to(own, service).await.map(drop)
    }

    async fn publish_poison_to(&mut self, own: &LocalSystem, service: &str) -> Result<String> {
        let id = Uuid::now_v7().to_string();
        self.poison.insert(id.clone());
        broker_api(own)?.publish(&format!("{service}.events"), "not json", &id).await?;
        Ok(id)
    }

    /// Deletes inventory's queue behind messages that its consumer has buffered. Nothing is published meanwhile, and the
    /// messages are copies: what the queue loses has been applied, and no cancellation overtakes a lost creation.
    async fn cancel_consumer(&mut self, own: &LocalSystem, tap: &Tap) -> Result<()> {
        let orders: Vec<_> = own.processes.names().filter(|name| name.starts_with("orders")).collect();
        orders.iter().try_for_each(|name| own.processes.pause(name))?;
        let deleted = self.delete_queue(own, tap).await;
        orders.iter().try_for_each(|name| own.processes.resume(name))?;
        deleted
    }

    async fn delete_queue(&mut self, own: &LocalSystem, tap: &Tap) -> Result<()> {
        // A queue is read in its order: once a bad message is set aside, all before it are applied.
        let last = self.publish_poison_to(own, "inventory").await?;
        let saved = format!("select count(*)::text from inventory.dead_letters where message_id = '{last}'");
        eventually("inventory to set aside the last message", CONDITION_DEADLINE, async || {
            Ok((self.system.read(&saved).await? != "0").then_some(()))
        })
        .await?;
        let mut operator = PgConnection::connect(&self.system.addresses()?.admin_url).await?;
        let mut lock = operator.begin().await?;
        sqlx::query("lock table inventory.processed_events in access exclusive mode")
            .execute(&mut *lock)
            .await?;
        let api = broker_api(own)?;
        for message in tap.recent() {
            if message["routing_key"] == "order.created" {
                let payload = message["payload"].as_str().context("a message without a payload")?;
                api.publish_as("amq.default", "inventory.events", payload, &message["properties"]).await?;
            }
        }
        api.delete("queues/shop/inventory.events").await?;
        // A consumer that misses the end finds a healthy queue when the lock is released.
        api.await_bindings().await?;
        Ok(lock.rollback().await?)
    }

    async fn publish_copies(&mut self, own: &LocalSystem, tap: &Tap) -> Result<()> {
        let (api, mut messages) = (broker_api(own)?, tap.recent());
        self.random.shuffle(&mut messages);
        for message in messages {
            let key = message["routing_key"].as_str().context("a message without a routing key")?;
            let payload = message["payload"].as_str().context("a message without a payload")?;
            api.publish_as("shop.events", key, payload, &message["properties"]).await?;
            self.copies += 1;
        }
        Ok(())
    }
}

fn broker_api(own: &LocalSystem) -> Result<BrokerApi> {
    BrokerApi::new(own.rabbitmq.api_url(), "shop")
}

async fn kill(own: &LocalSystem, server: &Target, pause: Duration) -> Result<()> {
    own.act(Action::Kill, server).await?;
    sleep(pause).await;
    own.act(Action::Start, server).await
}
