//! Every way in which the broker can fail: how soon the services notice, and how soon they recover by themselves.
//!
//! The times are printed and not judged: they say little about a busy machine. The test fails if a failure is not
//! noticed, if the services do not recover, if something is lost, or if an attempt is counted that is not the event's
//! own failure.

#![allow(clippy::print_stdout, reason = "the table is part of the result")]

use std::{
    collections::BTreeSet,
    pin::Pin,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use demo::lab::{CONDITION_DEADLINE, Setup, Stage};
use serde_json::{Value, json};
use testbed::{Rabbitmq, eventually};
use tokio::time::timeout;

/// A broker that belongs to this test, and a system that uses it.
struct Subject {
    broker: Rabbitmq,
    stage: Stage,
    api: reqwest::Client,
}

type Step = for<'a> fn(&'a Subject) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

struct Failure {
    name: &'static str,
    inject: Step,
    /// Waits for the end of the failure if the services repair it themselves.
    repair: Step,
    /// Whether attempts may be counted: a message that is returned as unroutable is that message's own failure.
    counts_attempts: bool,
    /// Whether the services repair it themselves. It can be over before it is noticed.
    repaired_by_services: bool,
    /// Whether orders are placed meanwhile. Not if one of several queues is missing: what is published then misses that
    /// queue (docs/guarantees.md).
    with_orders: bool,
}

const SERVICES: [&str; 3] = ["orders", "inventory", "billing"];
/// Each service opens at least one connection for each of these.
const ROLES: [&str; 3] = ["publisher", "consumer", "collector"];
/// The bindings of the three queues to the exchange of events: 6 of orders, 2 of inventory, 3 of billing.
const BINDINGS: usize = 11;
const NOTICE_DEADLINE: Duration = Duration::from_secs(30);
/// A frozen process does not answer.
const PROBE_DEADLINE: Duration = Duration::from_secs(2);
/// RabbitMQ 3.10, killed within a second or so of a quorum queue's creation, comes back without a leader for that
/// queue.
const QUEUES_SETTLE: Duration = Duration::from_secs(7);

static FAILURES: [Failure; 9] = [
    Failure {
        name: "killed",
        inject: |subject| Box::pin(subject.broker.kill()),
        repair: |subject| Box::pin(subject.broker.start()),
        counts_attempts: false,
        repaired_by_services: false,
        with_orders: true,
    },
    Failure {
        name: "frozen",
        inject: |subject| Box::pin(subject.broker.pause()),
        repair: |subject| Box::pin(subject.broker.resume()),
        counts_attempts: false,
        repaired_by_services: false,
        with_orders: true,
    },
    Failure {
        name: "memory alarm",
        inject: |subject| Box::pin(subject.broker.set_memory_limit("1")),
        repair: |subject| Box::pin(subject.broker.set_memory_limit(Rabbitmq::NO_ALARM)),
        counts_attempts: false,
        repaired_by_services: false,
        with_orders: true,
    },
    Failure {
        name: "all connections closed",
        inject: |subject| {
            Box::pin(async {
                subject.await_connections().await?;
                subject.close_connections().await
            })
        },
        repair: |_| Box::pin(async { Ok(()) }),
        counts_attempts: false,
        repaired_by_services: true,
        with_orders: true,
    },
    Failure {
        name: "refusing our password",
        inject: |subject| Box::pin(subject.set_password("another")),
        repair: |subject| Box::pin(subject.set_password("shop")),
        counts_attempts: false,
        repaired_by_services: false,
        with_orders: true,
    },
    Failure {
        name: "exchange deleted",
        inject: |subject| Box::pin(subject.delete("exchanges/shop/shop.events")),
        repair: |_| Box::pin(async { Ok(()) }),
        counts_attempts: false,
        repaired_by_services: true,
        with_orders: true,
    },
    Failure {
        name: "all bindings deleted",
        inject: |subject| Box::pin(subject.delete_bindings()),
        repair: |subject| Box::pin(subject.await_bindings()),
        counts_attempts: true,
        repaired_by_services: true,
        with_orders: true,
    },
    Failure {
        name: "a queue deleted while empty",
        inject: |subject| Box::pin(subject.delete("queues/shop/inventory.events")),
        repair: |_| Box::pin(async { Ok(()) }),
        counts_attempts: false,
        repaired_by_services: true,
        with_orders: false,
    },
    Failure {
        name: "a queue with other arguments",
        inject: |subject| {
            Box::pin(async {
                subject.delete("queues/shop/billing.events").await?;
                let queue = subject.url("queues/shop/billing.events");
                let put = subject.api.put(queue).json(&json!({ "durable": true }));
                put.send().await?.error_for_status()?;
                Ok(())
            })
        },
        repair: |subject| Box::pin(subject.delete("queues/shop/billing.events")),
        counts_attempts: false,
        repaired_by_services: false,
        with_orders: false,
    },
];

#[tokio::test]
async fn every_broker_failure_is_noticed_and_the_services_recover_by_themselves() -> Result<()> {
    let broker = Rabbitmq::private().await?;
    // One relay: while it restores one binding after the other, a second one could publish to the first queue alone
    // (docs/guarantees.md).
    let setup = Setup::default().with("ORDERS_RELAY_WORKERS", "1");
    let stage = Stage::ready(&broker.url(), setup).await?;
    let subject = Subject { broker, stage, api: reqwest::Client::new() };
    subject.create_operator().await?;
    subject.stage.load(20, QUEUES_SETTLE).await??;
    subject.stage.held().await?;
    println!("{:<30} {:>12} {:>12}", "the broker is", "noticed", "recovered");
    for failure in &FAILURES {
        let (noticed, recovered) = subject.fail(failure).await.context(failure.name)?;
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

impl Subject {
    /// Injects a failure and repairs it. Returns how long the services took to notice it, and how long after the repair
    /// everything was applied.
    async fn fail(&self, failure: &Failure) -> Result<(Option<Duration>, Duration)> {
        let attempts_before = self.attempts().await?;
        let failed_before = self.stage.counter("orders", "outbox_failed_total").await?;
        let inject = async {
            (failure.inject)(self).await?;
            if failure.with_orders {
                for _ in 0..5 {
                    self.stage.order().await?;
                }
            }
            anyhow::Ok(())
        };
        // Begins before the failure, because the services may repair it within milliseconds.
        let began = Instant::now();
        let notice = async {
            let noticed = eventually("a service to notice", NOTICE_DEADLINE, async || {
                let failed = timeout(PROBE_DEADLINE, self.stage.counter("orders", "outbox_failed_total"));
                let failed = failed.await?? > failed_before;
                Ok((failed || self.reports_an_outage().await?).then_some(()))
            });
            Ok(noticed.await.ok().map(|()| began.elapsed()))
        };
        let ((), noticed) = tokio::try_join!(inject, notice)?;
        ensure!(
            noticed.is_some() || failure.repaired_by_services,
            "no service noticed it within {NOTICE_DEADLINE:?}"
        );
        (failure.repair)(self).await?;
        let repaired_at = Instant::now();
        if !failure.with_orders {
            self.await_health().await?;
        }
        self.stage.order().await?;
        self.stage.held().await?;
        self.await_health().await?;
        let attempts = self.attempts().await?;
        let allowed = failure.counts_attempts || attempts == attempts_before;
        ensure!(allowed, "attempts were counted: {attempts_before} before, {attempts} now");
        Ok((noticed, repaired_at.elapsed()))
    }

    /// Waits until no service reports an outage of the broker.
    async fn await_health(&self) -> Result<()> {
        eventually("all services to be healthy", CONDITION_DEADLINE, async || {
            Ok((!self.reports_an_outage().await?).then_some(()))
        })
        .await
    }

    /// Whether a service reports that its broker is unavailable.
    async fn reports_an_outage(&self) -> Result<bool> {
        for service in SERVICES {
            let (_, health) = timeout(PROBE_DEADLINE, self.stage.health(service)).await??;
            if health["parts"]["broker"]["up"] == false {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// How many failed attempts the events of the order service have.
    async fn attempts(&self) -> Result<i64> {
        let attempts = "select coalesce(sum(attempts), 0)::bigint from orders.outbox";
        Ok(sqlx::query_scalar(attempts).fetch_one(&self.stage.auditor).await?)
    }

    fn url(&self, path: &str) -> String {
        format!("{}/api/{path}", self.broker.api_url().replace("shop:shop@", "operator:operator@"))
    }

    /// Creates a user that stays an administrator whatever happens to the services' user.
    async fn create_operator(&self) -> Result<()> {
        let users = format!("{}/api/users/operator", self.broker.api_url());
        let operator = json!({ "password": "operator", "tags": "administrator" });
        self.api.put(users).json(&operator).send().await?.error_for_status()?;
        let permissions = format!("{}/api/permissions/shop/operator", self.broker.api_url());
        let all = json!({ "configure": ".*", "write": ".*", "read": ".*" });
        self.api.put(permissions).json(&all).send().await?.error_for_status()?;
        Ok(())
    }

    async fn delete(&self, path: &str) -> Result<()> {
        self.api.delete(self.url(path)).send().await?.error_for_status()?;
        Ok(())
    }

    async fn list(&self, path: &str) -> Result<Vec<Value>> {
        Ok(self.api.get(self.url(path)).send().await?.error_for_status()?.json().await?)
    }

    /// The bindings to the exchange of events.
    async fn bindings(&self) -> Result<Vec<Value>> {
        self.list("exchanges/shop/shop.events/bindings/source").await
    }

    /// Deletes all bindings. Every relay restores them every few seconds, so the services are frozen meanwhile.
    /// Inventory and billing stay frozen: while one of them restores a binding, the order service's relay could publish
    /// to that queue alone.
    async fn delete_bindings(&self) -> Result<()> {
        for service in SERVICES {
            self.stage.system.pause(service)?;
        }
        let bindings = self.bindings().await?;
        ensure!(bindings.len() == BINDINGS, "{} bindings instead of {BINDINGS}", bindings.len());
        for binding in bindings {
            let field = |name: &str| binding[name].as_str().unwrap_or_default().to_owned();
            let (queue, key) = (field("destination"), field("properties_key"));
            self.delete(&format!("bindings/shop/e/shop.events/q/{queue}/{key}")).await?;
        }
        let left = self.bindings().await?;
        ensure!(left.is_empty(), "bindings are left: {left:?}");
        self.stage.system.resume("orders")
    }

    /// Waits until the order service's relay has restored all bindings, and continues the other services.
    async fn await_bindings(&self) -> Result<()> {
        eventually("all bindings to be restored", CONDITION_DEADLINE, async || {
            let bindings = self.bindings().await?.len();
            ensure!(bindings == BINDINGS, "{bindings} bindings");
            Ok(Some(()))
        })
        .await?;
        self.stage.system.resume("inventory")?;
        self.stage.system.resume("billing")
    }

    /// Waits until the broker lists each kind of connection: after the last failure some may still be reconnecting.
    async fn await_connections(&self) -> Result<()> {
        eventually("all services to be connected", CONDITION_DEADLINE, async || {
            let open = self.list("connections").await?;
            let kinds: BTreeSet<String> =
                open.iter().map(|connection| connection["user_provided_name"].to_string()).collect();
            let expected = SERVICES.len() * ROLES.len();
            ensure!(kinds.len() >= expected, "connected only {kinds:?}");
            Ok(Some(()))
        })
        .await
    }

    /// Closes the connections of all services, as an operator can. The broker's list is seconds old, so it is read until
    /// none is left that was opened before.
    async fn close_connections(&self) -> Result<()> {
        let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_millis();
        eventually("all connections to be closed", CONDITION_DEADLINE, async || {
            let mut old = self.list("connections").await?;
            old.retain(|open| u128::from(open["connected_at"].as_u64().unwrap_or_default()) <= began);
            for connection in &old {
                let name = connection["name"].as_str().unwrap_or_default();
                let name = name.replace(' ', "%20").replace('>', "%3E");
                // It may be closed already.
                self.api.delete(self.url(&format!("connections/{name}"))).send().await?;
            }
            Ok(old.is_empty().then_some(()))
        })
        .await
    }

    /// Sets the password of the services' user. Open connections stay open, so they are closed as well.
    async fn set_password(&self, password: &str) -> Result<()> {
        let refused = password != "shop";
        if refused {
            self.await_connections().await?;
        }
        let user = json!({ "password": password, "tags": "administrator" });
        self.api.put(self.url("users/shop")).json(&user).send().await?.error_for_status()?;
        if refused {
            self.close_connections().await?;
        }
        Ok(())
    }
}
