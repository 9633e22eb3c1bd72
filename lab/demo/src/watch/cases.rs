//! What fires which alert.

use std::time::Duration;

use anyhow::{Context as _, Result};
use fault_proxy::{Direction, Effect};
use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use testbed::eventually;
use tokio::sync::Mutex;

use crate::lab::{BrokerApi, CONDITION_DEADLINE};
use crate::own_system::database_route;
use crate::running_system::RunningSystem;
use crate::set_aside::{count_waiting, discard_all};
use crate::target::{Action, Target};

/// A fault, and the alerts that it fires.
pub(crate) struct Case {
    /// In words: what is done.
    pub(crate) what: &'static str,
    pub(crate) alerts: &'static [Expected],
    fault: Fault,
}

/// An alert that a fault fires.
pub(crate) struct Expected {
    pub(crate) alert: &'static str,
    /// How many seconds after the fault its expression becomes true, at sixty orders a second. Its delay (`for`) follows.
    pub(crate) true_after: u64,
}

/// What is done to a system, and undone.
enum Fault {
    KillService(&'static str),
    KillBroker,
    /// A session locks a table of a service.
    Lock(&'static str, &'static str),
    /// The network between a service and its database has this effect.
    Database(&'static str, Effect),
    /// Statements as the order service.
    Sql {
        inject: &'static str,
        repair: &'static str,
    },
    BadMessages,
    FullQueue,
}

const fn fires(alert: &'static str, true_after: u64) -> Expected {
    Expected { alert, true_after }
}

/// In an order in which no alert of a case is still firing from an earlier one.
pub(crate) static CASES: [Case; 11] = [
    Case {
        what: "a message that is no event is in inventory's queue, and a dead letter that cannot be saved in billing's",
        alerts: &[fires("MessageSetAside", 5), fires("DeadLettersNotSaved", 5)],
        fault: Fault::BadMessages,
    },
    Case {
        what: "the payment provider is killed",
        alerts: &[fires("PaymentsWait", 60), fires("OrdersTimedOut", 180)],
        fault: Fault::KillService("provider"),
    },
    Case {
        what: "a session locks the table inventory.reservations",
        alerts: &[fires("ConsumerStalled", 10), fires("QueueGrows", 60)],
        fault: Fault::Lock("inventory", "reservations"),
    },
    // For the dashboard.
    Case {
        what: "billing's queue is full, and fifty published events come again",
        alerts: &[],
        fault: Fault::FullQueue,
    },
    Case {
        what: "each byte between orders and PostgreSQL takes 350 ms each way",
        alerts: &[fires("OrdersSlow", 15)],
        fault: Fault::Database("orders", Effect::Delay(Duration::from_millis(350))),
    },
    // Not by a slow network: with a slow database hardly an order is accepted, and a relay without events makes no steps;
    // with a slow broker a relay that has lost its connection does not get another one in time, and makes none either.
    Case {
        what: "each time that the relay of orders marks events, PostgreSQL takes 2.5 s",
        alerts: &[fires("RelayStepsSlow", 60)],
        fault: Fault::Sql { inject: SLOW_MARKS, repair: "drop trigger slow_mark on outbox" },
    },
    Case {
        what: "a session locks the table orders.orders",
        alerts: &[fires("OrderErrors", 20)],
        fault: Fault::Lock("orders", "orders"),
    },
    Case {
        what: "nothing arrives between billing and PostgreSQL any more",
        alerts: &[fires("MetricUnknown", 10)],
        fault: Fault::Database("billing", Effect::BlackHole),
    },
    Case {
        what: "inventory is killed",
        alerts: &[fires("ServiceDown", 5), fires("MetricAbsent", 10)],
        fault: Fault::KillService("inventory"),
    },
    Case {
        what: "RabbitMQ is killed",
        alerts: &[
            fires("BrokerDisconnected", 10),
            fires("NothingIsPublished", 65),
            fires("OutboxOldestPendingTooOld", 35),
            fires("OutboxBacklogGrows", 60),
            fires("OrderOpenTooLong", 120),
        ],
        fault: Fault::KillBroker,
    },
    Case {
        what: "a published event is marked as parked, as after thirteen refusals",
        alerts: &[fires("EventParked", 5)],
        // Thirteen refusals take ten minutes.
        fault: Fault::Sql {
            inject: "update outbox set published_at = null, parked_at = now(), attempts = 13
                     where seq = (select max(seq) from outbox where published_at is not null)",
            repair: "update outbox set parked_at = null, attempts = 0 where parked_at is not null",
        },
    },
];

const SLOW_MARKS: &str = "
    create function slow_mark() returns trigger language plpgsql as $$
    begin
        perform pg_sleep(2.5);
        return null;
    end $$;
    create trigger slow_mark before update on outbox for each statement execute function slow_mark()";

/// Refuses the dead letter [`REFUSED`].
const REFUSE_LETTER: &str = "
    create function refuse_letter() returns trigger language plpgsql as $$
    begin
        if new.message_id = 'cannot-be-saved' then
            raise exception 'refused' using errcode = 'check_violation';
        end if;
        return new;
    end $$;
    create trigger refuse_letter before insert on dead_letters for each row execute function refuse_letter()";
const REFUSED: &str = "cannot-be-saved";

/// The policy that makes a queue full.
const POLICY: &str = "policies/shop/full";

/// What cases use to break a system and to repair it.
pub(crate) struct Faults<'a> {
    system: &'a RunningSystem,
    /// A session that holds a table lock until it ends.
    lock: Mutex<Option<PgConnection>>,
}

impl Case {
    pub(crate) async fn inject(&self, faults: &Faults<'_>) -> Result<()> {
        faults.inject(&self.fault).await.with_context(|| format!("failed to inject: {}", self.what))
    }

    pub(crate) async fn repair(&self, faults: &Faults<'_>) -> Result<()> {
        faults.repair(&self.fault).await.with_context(|| format!("failed to repair: {}", self.what))
    }
}

impl<'a> Faults<'a> {
    pub(crate) fn new(system: &'a RunningSystem) -> Self {
        Self { system, lock: Mutex::default() }
    }

    async fn inject(&self, fault: &Fault) -> Result<()> {
        let system = self.system;
        match fault {
            Fault::KillService(name) => system.act(Action::Kill, &Target::Service((*name).to_owned())).await,
            Fault::KillBroker => system.act(Action::Kill, &Target::Broker).await,
            Fault::Lock(service, table) => self.lock(service, table).await,
            Fault::Database(service, effect) => {
                let route = database_route(service);
                system.proxies()?.set(&route, effect.clone(), Direction::Both).await
            }
            Fault::Sql { inject, .. } => system.execute_as("orders", inject).await,
            Fault::BadMessages => {
                system.execute_as("billing", REFUSE_LETTER).await?;
                let api = self.broker()?;
                api.publish("inventory.events", "this is no event", "no-event").await?;
                api.publish("billing.events.dead", "this is no event", REFUSED).await
            }
            // Full at one message: one more is refused while billing applies nothing.
            Fault::FullQueue => {
                self.lock("billing", "payments").await?;
                let full = json!({ "max-length": 1, "overflow": "reject-publish" });
                let policy =
                    json!({ "pattern": "^billing.events$", "definition": full, "apply-to": "queues" });
                self.broker()?.put(POLICY, &policy).await?;
                let again = "update outbox set published_at = null where seq in (
                                 select seq from outbox where published_at is not null order by seq desc limit 50);
                             select outbox_wake()";
                system.execute_as("orders", again).await
            }
        }
    }

    async fn repair(&self, fault: &Fault) -> Result<()> {
        let system = self.system;
        match fault {
            Fault::KillService(name) => system.act(Action::Start, &Target::Service((*name).to_owned())).await,
            Fault::KillBroker => system.act(Action::Start, &Target::Broker).await,
            Fault::Lock(..) => self.unlock().await,
            Fault::Database(service, _) => system.proxies()?.clear(&database_route(service)).await,
            Fault::Sql { repair, .. } => system.execute_as("orders", repair).await,
            Fault::BadMessages => {
                system.execute_as("billing", "drop trigger refuse_letter on dead_letters").await?;
                // Billing's comes into its table first, once it can be saved.
                eventually("the dead letters to be discarded", CONDITION_DEADLINE, async || {
                    discard_all(system, "sent by demo watch").await?;
                    let left = system.metric("billing", "inbox_unsaved_dead_letters").await?;
                    Ok((left == 0.0 && count_waiting(system).await? == 0).then_some(()))
                })
                .await
            }
            Fault::FullQueue => {
                self.broker()?.delete(POLICY).await?;
                self.unlock().await
            }
        }
    }

    fn broker(&self) -> Result<BrokerApi> {
        BrokerApi::new(self.system.own()?.rabbitmq.api_url(), "shop")
    }

    async fn lock(&self, service: &str, table: &str) -> Result<()> {
        let mut session = PgConnection::connect(&self.system.own()?.addresses()?.databases[service]).await?;
        let lock = format!(
            "set idle_in_transaction_session_timeout = 0; begin; lock table {table} in access exclusive mode"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(lock)).execute(&mut session).await?;
        *self.lock.lock().await = Some(session);
        Ok(())
    }

    async fn unlock(&self) -> Result<()> {
        let session = self.lock.lock().await.take().context("no table is locked")?;
        Ok(session.close().await?)
    }
}
