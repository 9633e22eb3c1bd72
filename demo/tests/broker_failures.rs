//! Every way in which a broker can fail: how soon it is noticed, and how soon everything is healed, without a hand.
//!
//! The times are printed, not judged: on a busy machine they say little. That it is noticed at all, healed at all, loses
//! nothing and burns no attempt is judged.

#![allow(clippy::print_stdout, reason = "the table is part of the result")]

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use demo::lab::{PATIENCE, Setup, Stage};
use serde_json::{Value, json};
use testbed::{Rabbitmq, eventually};

/// One broker of one's own, and a system on it.
struct Ward {
    broker: Rabbitmq,
    stage: Stage,
    api: reqwest::Client,
}

/// What is done to the broker; what mends it again, if it does not mend itself.
type Step = for<'a> fn(&'a Ward) -> std::pin::Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

struct Failure {
    name: &'static str,
    hurt: Step,
    mend: Step,
    /// Whether attempts may be counted: when a message comes back, that is this message's own failure.
    counts: bool,
    /// Whether it may be over before anybody looks.
    heals_itself: bool,
    /// Whether orders are placed meanwhile. Not where one of several queues is gone: what is published then misses it, and
    /// docs/guarantees.md says so.
    orders: bool,
}

static FAILURES: [Failure; 9] = [
    Failure {
        name: "killed",
        hurt: |ward| Box::pin(ward.broker.kill()),
        mend: |ward| Box::pin(ward.broker.start()),
        counts: false,
        heals_itself: false,
        orders: true,
    },
    Failure {
        name: "frozen",
        hurt: |ward| Box::pin(ward.broker.pause()),
        mend: |ward| Box::pin(ward.broker.resume()),
        counts: false,
        heals_itself: false,
        orders: true,
    },
    Failure {
        name: "memory alarm",
        hurt: |ward| Box::pin(ward.broker.set_memory_limit("1")),
        mend: |ward| Box::pin(ward.broker.set_memory_limit(Rabbitmq::NO_ALARM)),
        counts: false,
        heals_itself: false,
        orders: true,
    },
    Failure {
        name: "all connections closed",
        hurt: |ward| Box::pin(ward.close_connections()),
        mend: |_| Box::pin(async { Ok(()) }),
        counts: false,
        heals_itself: true,
        orders: true,
    },
    Failure {
        name: "refusing our password",
        hurt: |ward| Box::pin(ward.set_password("another")),
        mend: |ward| Box::pin(ward.set_password("shop")),
        counts: false,
        heals_itself: false,
        orders: true,
    },
    Failure {
        name: "exchange deleted",
        hurt: |ward| Box::pin(ward.delete("exchanges/shop/shop.events")),
        mend: |_| Box::pin(async { Ok(()) }),
        counts: false,
        heals_itself: true,
        orders: true,
    },
    Failure {
        name: "all bindings deleted",
        hurt: |ward| {
            Box::pin(async {
                for queue in ["inventory.events", "billing.events"] {
                    for key in ["order.created", "order.cancelled"] {
                        ward.delete(&format!("bindings/shop/e/shop.events/q/{queue}/{key}")).await?;
                    }
                }
                Ok(())
            })
        },
        mend: |_| Box::pin(async { Ok(()) }),
        counts: true,
        heals_itself: true,
        orders: true,
    },
    Failure {
        name: "a queue deleted while empty",
        hurt: |ward| Box::pin(ward.delete("queues/shop/inventory.events")),
        mend: |_| Box::pin(async { Ok(()) }),
        counts: false,
        heals_itself: true,
        orders: false,
    },
    Failure {
        name: "a queue with other arguments",
        hurt: |ward| {
            Box::pin(async {
                ward.delete("queues/shop/billing.events").await?;
                let put =
                    ward.api.put(ward.url("queues/shop/billing.events")).json(&json!({ "durable": true }));
                put.send().await?.error_for_status()?;
                Ok(())
            })
        },
        mend: |ward| Box::pin(ward.delete("queues/shop/billing.events")),
        counts: false,
        heals_itself: false,
        orders: false,
    },
];

#[tokio::test]
async fn every_failure_of_the_broker_is_noticed_and_healed_without_a_hand() -> Result<()> {
    let broker = Rabbitmq::private().await?;
    // One relay: while it binds one queue after the other again, a second one could publish to the first queue alone
    // (docs/guarantees.md).
    let stage = Stage::ready(&broker.url(), Setup::default().with("ORDERS_RELAY_WORKERS", "1")).await?;
    let ward = Ward { broker, stage, api: reqwest::Client::new() };
    ward.admit_nurse().await?;
    // RabbitMQ 3.10, killed within a second or so of a quorum queue's creation, comes back without a leader for it.
    ward.stage.load(20, Duration::from_secs(7)).await??;
    ward.stage.held().await?;
    println!("{:<30} {:>12} {:>12}", "the broker is", "noticed", "healed");
    for failure in &FAILURES {
        let (noticed, healed) = ward.suffer(failure).await.map_err(|error| error.context(failure.name))?;
        let show = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        println!(
            "{:<30} {:>12} {:>12}",
            failure.name,
            noticed.map_or("in passing".to_owned(), show),
            show(healed)
        );
    }
    Ok(())
}

impl Ward {
    /// Returns how long after the fault somebody said so, and how long after the mending everything was applied.
    async fn suffer(&self, failure: &Failure) -> Result<(Option<Duration>, Duration)> {
        let attempts_before = self.attempts().await?;
        let failed_before = self.stage.counter("orders", "outbox_failed_total").await?;
        let hurt_at = Instant::now();
        (failure.hurt)(self).await?;
        // Something to be published, and to get stuck.
        for _ in 0..if failure.orders { 5 } else { 0 } {
            self.stage.order().await?;
        }
        // What heals by itself may be healed before anybody looks.
        let noticed = eventually("somebody to notice", Duration::from_secs(20), async || {
            let complains = self.complains().await?;
            let failed = self.stage.counter("orders", "outbox_failed_total").await? > failed_before;
            Ok((complains || failed).then_some(()))
        });
        let noticed = if noticed.await.is_ok() { Some(hurt_at.elapsed()) } else { None };
        ensure!(noticed.is_some() || failure.heals_itself, "nobody noticed for 20 s");
        (failure.mend)(self).await?;
        // What heals itself is healed while we look; what follows is then the time of one order.
        let mended_at = Instant::now();
        if !failure.orders {
            self.content().await?;
        }
        self.stage.order().await?;
        self.stage.held().await?;
        self.content().await?;
        let attempts = self.attempts().await?;
        ensure!(failure.counts || attempts == attempts_before, "attempts were burnt: {attempts}");
        Ok((noticed, mended_at.elapsed()))
    }

    /// Waits until no service complains any more.
    async fn content(&self) -> Result<()> {
        eventually("health to be good again", PATIENCE, async || Ok((!self.complains().await?).then_some(())))
            .await
    }

    /// Whether any service says that its broker is away.
    async fn complains(&self) -> Result<bool> {
        for service in ["orders", "inventory", "billing"] {
            let health = self.api.get(format!("{}/readyz", self.stage.system.url(service)?)).send().await?;
            let health: Value = health.json().await?;
            if health["parts"]["broker"]["up"] == false {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn attempts(&self) -> Result<i64> {
        let attempts = "select coalesce(sum(attempts), 0)::bigint from orders.outbox";
        Ok(sqlx::query_scalar(attempts).fetch_one(&self.stage.auditor).await?)
    }

    fn url(&self, path: &str) -> String {
        format!("{}/api/{path}", self.broker.api_url().replace("shop:shop@", "nurse:nurse@"))
    }

    /// Somebody who may do everything, whatever becomes of the services' login.
    async fn admit_nurse(&self) -> Result<()> {
        let users = format!("{}/api/users/nurse", self.broker.api_url());
        let nurse = json!({ "password": "nurse", "tags": "administrator" });
        self.api.put(users).json(&nurse).send().await?.error_for_status()?;
        let permissions = format!("{}/api/permissions/shop/nurse", self.broker.api_url());
        let all = json!({ "configure": ".*", "write": ".*", "read": ".*" });
        self.api.put(permissions).json(&all).send().await?.error_for_status()?;
        Ok(())
    }

    async fn delete(&self, path: &str) -> Result<()> {
        self.api.delete(self.url(path)).send().await?.error_for_status()?;
        Ok(())
    }

    /// By the administrator, as an operator would in a hurry.
    async fn close_connections(&self) -> Result<()> {
        let listed = async || -> Result<Vec<Value>> {
            Ok(self.api.get(self.url("connections")).send().await?.json().await?)
        };
        // The list is seconds old.
        let connections = eventually("connections to be listed", PATIENCE, async || {
            Ok(Some(listed().await?).filter(|all| all.len() >= 4))
        })
        .await?;
        for connection in connections {
            let name =
                connection["name"].as_str().unwrap_or_default().replace(' ', "%20").replace('>', "%3E");
            // It may be gone already.
            self.api.delete(self.url(&format!("connections/{name}"))).send().await?;
        }
        Ok(())
    }

    /// Of the services' login. Sessions that are open stay open, so they are closed as well.
    async fn set_password(&self, password: &str) -> Result<()> {
        let user = json!({ "password": password, "tags": "administrator" });
        self.api.put(self.url("users/shop")).json(&user).send().await?.error_for_status()?;
        self.close_connections().await
    }
}
