//! What fires which alert.

use std::time::Duration;

use anyhow::{Context as _, Result};
use fault_proxy::{Direction, Effect};
use futures_util::future::LocalBoxFuture;
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
    inject: Injection,
    repair: Injection,
}

/// An alert that a fault fires.
pub(crate) struct Expected {
    pub(crate) alert: &'static str,
    /// How many seconds after the fault its expression becomes true, at sixty orders a second. Its delay (`for`) follows.
    pub(crate) true_after: u64,
}

type Injection = for<'a> fn(&'a Faults<'a>) -> LocalBoxFuture<'a, Result<()>>;

/// What cases use to break a system and to repair it.
pub(crate) struct Faults<'a> {
    system: &'a RunningSystem,
    /// A session that holds a table lock until it ends.
    lock: Mutex<Option<PgConnection>>,
}

const fn fires(alert: &'static str, true_after: u64) -> Expected {
    Expected { alert, true_after }
}

/// In an order in which no alert of a case is still firing from an earlier one.
pub(crate) const CASES: [Case; 11] = [
    Case {
        what: "a message that is no event is in inventory's queue, and a dead letter that cannot be saved in billing's",
        alerts: &[fires("MessageSetAside", 5), fires("DeadLettersNotSaved", 5)],
        inject: |faults| Box::pin(faults.send_bad_messages()),
        repair: |faults| Box::pin(faults.save_dead_letters()),
    },
    Case {
        what: "the payment provider is killed",
        alerts: &[fires("PaymentsWait", 60), fires("OrdersTimedOut", 180)],
        inject: |faults| Box::pin(faults.act(Action::Kill, "provider")),
        repair: |faults| Box::pin(faults.act(Action::Start, "provider")),
    },
    Case {
        what: "a session locks the table inventory.reservations",
        alerts: &[fires("ConsumerStalled", 10), fires("QueueGrows", 60)],
        inject: |faults| Box::pin(faults.lock("inventory", "reservations")),
        repair: |faults| Box::pin(faults.unlock()),
    },
    // For the dashboard.
    Case {
        what: "billing's queue is full, and fifty published events come again",
        alerts: &[],
        inject: |faults| Box::pin(faults.fill_queue()),
        repair: |faults| Box::pin(faults.empty_queue()),
    },
    Case {
        what: "each byte between orders and PostgreSQL takes 350 ms each way",
        alerts: &[fires("OrdersSlow", 15)],
        inject: |faults| Box::pin(faults.slow(database_route("orders"), Duration::from_millis(350))),
        repair: |faults| Box::pin(faults.clear(database_route("orders"))),
    },
    // Not by a slow network: with a slow database hardly an order is accepted, and a relay without events makes no steps;
    // with a slow broker a relay that has lost its connection does not get another one in time, and makes none either.
    Case {
        what: "each time that the relay of orders marks events, PostgreSQL takes 2.5 s",
        alerts: &[fires("RelayStepsSlow", 60)],
        inject: |faults| Box::pin(faults.slow_marks()),
        repair: |faults| Box::pin(faults.fast_marks()),
    },
    Case {
        what: "a session locks the table orders.orders",
        alerts: &[fires("OrderErrors", 20)],
        inject: |faults| Box::pin(faults.lock("orders", "orders")),
        repair: |faults| Box::pin(faults.unlock()),
    },
    Case {
        what: "nothing arrives between billing and PostgreSQL any more",
        alerts: &[fires("MetricUnknown", 10)],
        inject: |faults| Box::pin(faults.hide_database("billing")),
        repair: |faults| Box::pin(faults.clear(database_route("billing"))),
    },
    Case {
        what: "inventory is killed",
        alerts: &[fires("ServiceDown", 5), fires("MetricAbsent", 10)],
        inject: |faults| Box::pin(faults.act(Action::Kill, "inventory")),
        repair: |faults| Box::pin(faults.act(Action::Start, "inventory")),
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
        inject: |faults| Box::pin(faults.kill_broker()),
        repair: |faults| Box::pin(faults.start_broker()),
    },
    Case {
        what: "a published event is marked as parked, as after thirteen refusals",
        alerts: &[fires("EventParked", 5)],
        inject: |faults| Box::pin(faults.park()),
        repair: |faults| Box::pin(faults.unpark()),
    },
];

impl Case {
    pub(crate) async fn inject(&self, faults: &Faults<'_>) -> Result<()> {
        (self.inject)(faults).await.with_context(|| format!("failed to inject: {}", self.what))
    }

    pub(crate) async fn repair(&self, faults: &Faults<'_>) -> Result<()> {
        (self.repair)(faults).await.with_context(|| format!("failed to repair: {}", self.what))
    }
}

/// The policy that makes a queue full.
const POLICY: &str = "policies/shop/full";

/// The dead letter that a trigger refuses.
const REFUSED: &str = "cannot-be-saved";

impl<'a> Faults<'a> {
    pub(crate) fn new(system: &'a RunningSystem) -> Self {
        Self { system, lock: Mutex::default() }
    }

    async fn act(&self, action: Action, service: &str) -> Result<()> {
        self.system.act(action, &Target::Service(service.to_owned())).await
    }

    async fn kill_broker(&self) -> Result<()> {
        self.system.act(Action::Kill, &Target::Broker).await
    }

    async fn start_broker(&self) -> Result<()> {
        self.system.act(Action::Start, &Target::Broker).await
    }

    async fn send_bad_messages(&self) -> Result<()> {
        let refuse = format!(
            "create function refuse_letter() returns trigger language plpgsql as $$
             begin
                 if new.message_id = '{REFUSED}' then
                     raise exception 'refused' using errcode = 'check_violation';
                 end if;
                 return new;
             end $$;
             create trigger refuse_letter before insert on dead_letters
                 for each row execute function refuse_letter()"
        );
        self.system.execute_as("billing", &refuse).await?;
        let api = self.broker()?;
        api.publish("inventory.events", "this is no event", "no-event").await?;
        api.publish("billing.events.dead", "this is no event", REFUSED).await
    }

    async fn save_dead_letters(&self) -> Result<()> {
        self.system.execute_as("billing", "drop trigger refuse_letter on dead_letters").await?;
        // Billing's comes into its table first, once it can be saved.
        eventually("the dead letters to be discarded", CONDITION_DEADLINE, async || {
            discard_all(self.system, "sent by demo watch").await?;
            let left = self.system.metric("billing", "inbox_unsaved_dead_letters").await?;
            Ok((left == 0.0 && count_waiting(self.system).await? == 0).then_some(()))
        })
        .await
    }

    /// Full at one message: one more is refused while billing applies nothing.
    async fn fill_queue(&self) -> Result<()> {
        self.lock("billing", "payments").await?;
        let full = json!({ "max-length": 1, "overflow": "reject-publish" });
        let policy = json!({ "pattern": "^billing.events$", "definition": full, "apply-to": "queues" });
        self.broker()?.put(POLICY, &policy).await?;
        let again = "update outbox set published_at = null
                     where seq in (select seq from outbox where published_at is not null order by seq desc limit 50);
                     select outbox_wake()";
        self.system.execute_as("orders", again).await
    }

    async fn empty_queue(&self) -> Result<()> {
        self.broker()?.delete(POLICY).await?;
        self.unlock().await
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

    async fn slow(&self, route: String, delay: Duration) -> Result<()> {
        self.system.proxies()?.set(&route, Effect::Delay(delay), Direction::Both).await
    }

    async fn slow_marks(&self) -> Result<()> {
        let slow = "create function slow_mark() returns trigger language plpgsql as $$
                    begin
                        perform pg_sleep(2.5);
                        return null;
                    end $$;
                    create trigger slow_mark before update on outbox
                        for each statement execute function slow_mark()";
        self.system.execute_as("orders", slow).await
    }

    async fn fast_marks(&self) -> Result<()> {
        self.system.execute_as("orders", "drop trigger slow_mark on outbox").await
    }

    async fn hide_database(&self, service: &str) -> Result<()> {
        self.system.proxies()?.set(&database_route(service), Effect::BlackHole, Direction::Both).await
    }

    async fn clear(&self, route: String) -> Result<()> {
        self.system.proxies()?.clear(&route).await
    }

    /// By SQL, because thirteen refusals take ten minutes.
    async fn park(&self) -> Result<()> {
        let park = "update outbox set published_at = null, parked_at = now(), attempts = 13
                    where seq = (select max(seq) from outbox where published_at is not null)";
        self.system.execute_as("orders", park).await
    }

    async fn unpark(&self) -> Result<()> {
        let unpark = "update outbox set parked_at = null, attempts = 0 where parked_at is not null";
        self.system.execute_as("orders", unpark).await
    }
}
