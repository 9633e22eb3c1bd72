//! Every way in which the broker can fail: how soon the services notice, and how soon they recover by themselves.
//!
//! The times are printed and not judged: they say little about a busy machine. The test fails if a failure is not
//! noticed, if the services do not recover, if something is lost, or if an attempt is counted that is not the event's
//! own failure.

#![allow(clippy::print_stdout, reason = "the table is part of the result")]

use std::{
    pin::Pin,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use demo::lab::{BrokerApi, CONDITION_DEADLINE, Setup, Stage};
use serde_json::json;
use testbed::{Rabbitmq, eventually};
use tokio::time::timeout;

/// A broker that belongs to this test, and a system that uses it.
struct Subject {
    broker: Rabbitmq,
    stage: Stage,
    api: BrokerApi,
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
const NOTICE_DEADLINE: Duration = Duration::from_secs(30);
/// A frozen process does not answer.
const PROBE_DEADLINE: Duration = Duration::from_secs(2);
/// RabbitMQ 3.10, killed within a second or so of a quorum queue's creation, comes back without a leader for that
/// queue.
const QUEUES_SETTLE: Duration = Duration::from_secs(7);

/// A failure that someone else repairs, while orders are placed.
const fn failure(name: &'static str, inject: Step, repair: Step) -> Failure {
    Failure { name, inject, repair, counts_attempts: false, repaired_by_services: false, with_orders: true }
}

/// A failure that the services repair themselves.
const fn passing_failure(name: &'static str, inject: Step) -> Failure {
    let repair: Step = |_| Box::pin(async { Ok(()) });
    Failure { repaired_by_services: true, ..failure(name, inject, repair) }
}

static FAILURES: [Failure; 9] = [
    failure("killed", |subject| Box::pin(subject.broker.kill()), |subject| Box::pin(subject.broker.start())),
    failure(
        "frozen",
        |subject| Box::pin(subject.broker.pause()),
        |subject| Box::pin(subject.broker.resume()),
    ),
    failure(
        "memory alarm",
        |subject| Box::pin(subject.broker.set_memory_limit("1")),
        |subject| Box::pin(subject.broker.set_memory_limit(Rabbitmq::NO_ALARM)),
    ),
    passing_failure("all connections closed", |subject| Box::pin(subject.close_connections())),
    failure(
        "refusing our password",
        |subject| Box::pin(subject.refuse_password()),
        |subject| Box::pin(subject.api.restore_password()),
    ),
    passing_failure("exchange deleted", |subject| Box::pin(subject.api.delete("exchanges/shop/shop.events"))),
    Failure {
        counts_attempts: true,
        repair: |subject| Box::pin(subject.await_bindings()),
        ..passing_failure("all bindings deleted", |subject| Box::pin(subject.delete_bindings()))
    },
    Failure {
        with_orders: false,
        ..passing_failure("a queue deleted while empty", |subject| {
            Box::pin(subject.api.delete("queues/shop/inventory.events"))
        })
    },
    Failure {
        with_orders: false,
        ..failure(
            "a queue with other arguments",
            |subject| {
                Box::pin(async {
                    subject.api.delete("queues/shop/billing.events").await?;
                    subject.api.put("queues/shop/billing.events", &json!({ "durable": true })).await
                })
            },
            |subject| Box::pin(subject.api.delete("queues/shop/billing.events")),
        )
    },
];

#[tokio::test]
async fn every_broker_failure_is_noticed_and_the_services_recover_by_themselves() -> Result<()> {
    let broker = Rabbitmq::private().await?;
    // One relay: while it restores one binding after the other, a second one could publish to the first queue alone
    // (docs/guarantees.md).
    let setup = Setup::default().with("ORDERS_RELAY_WORKERS", "1");
    let stage = Stage::ready(&broker.url(), setup).await?;
    let mut api = BrokerApi::new(broker.api_url(), "shop")?;
    api.create_operator().await?;
    let subject = Subject { broker, stage, api };
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

    /// Deletes all bindings while the services are frozen. Inventory and billing stay frozen: while one of them restores a
    /// binding, the order service's relay could publish to that queue alone.
    async fn delete_bindings(&self) -> Result<()> {
        for service in SERVICES {
            self.stage.system.pause(service)?;
        }
        self.api.delete_bindings().await?;
        self.stage.system.resume("orders")
    }

    /// Waits until the order service's relay has restored all bindings, and continues the other services.
    async fn await_bindings(&self) -> Result<()> {
        self.api.await_bindings().await?;
        self.stage.system.resume("inventory")?;
        self.stage.system.resume("billing")
    }

    /// Closes the connections of all services. After the last failure some may still be reconnecting.
    async fn close_connections(&self) -> Result<()> {
        self.api.await_connections().await?;
        self.api.close_connections().await.map(drop)
    }

    /// Sets another password for the services' user. Open connections would stay open, so they are closed as well.
    async fn refuse_password(&self) -> Result<()> {
        self.api.await_connections().await?;
        self.api.change_password().await?;
        self.api.close_connections().await.map(drop)
    }
}

/// It cannot see at its start that it would neither publish nor consume.
#[tokio::test]
async fn service_with_another_number_of_partitions_ends_once_the_broker_it_has_waited_for_answers()
-> Result<()> {
    let broker = Rabbitmq::private().await?;
    let stage = Stage::ready(&broker.url(), Setup::default()).await?;
    let system = &stage.system;
    // So that the queues are in use, whoever connects first.
    system.terminate("billing").await?;
    stage.order().await?;
    eventually("the order to be published", CONDITION_DEADLINE, async || {
        Ok((stage.counter("orders", "outbox_published_total").await? >= 1.0).then_some(()))
    })
    .await?;
    tokio::time::sleep(QUEUES_SETTLE).await;
    broker.kill().await?;
    system.set("INVENTORY_PARTITIONS", "4");
    system.terminate("inventory").await?;
    system.start_again("inventory").await?;
    eventually("inventory to wait for the broker", CONDITION_DEADLINE, async || {
        let (_, health) = stage.health("inventory").await?;
        Ok((health["parts"]["database"]["up"] == true && health["parts"]["broker"]["up"] == false)
            .then_some(()))
    })
    .await?;
    broker.start().await?;
    eventually("inventory to end", CONDITION_DEADLINE, async || {
        Ok(system.pid("inventory").is_none().then_some(()))
    })
    .await?;
    let log = system.log("inventory")?;
    let reason = "invalid setting: INVENTORY_PARTITIONS: the queues have 1 partitions";
    ensure!(log.contains(reason), "{log}");
    Ok(())
}
