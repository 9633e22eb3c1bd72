//! The broker is not started yet; a database does not answer. `broker_failures.rs` has the failures of a broker that runs. Kills under
//! load are drills: `broker-kill`, `database-kill`.

use anyhow::{Result, ensure};
use demo::RunningSystem;
use demo::fault::Fault;
use demo::lab::{CONDITION_DEADLINE, Setup};
use testbed::eventually;

const SERVICES: [&str; 3] = ["orders", "inventory", "billing"];

/// What is read from a database or a broker that does not answer is unknown, and never the last value, or zero.
#[tokio::test]
async fn gauges_that_cannot_be_read_are_unknown() -> Result<()> {
    const OF_TABLES: [(&str, &[&str]); 3] = [
        (
            "orders",
            &[
                "outbox_pending",
                "outbox_parked",
                "outbox_oldest_pending_age_seconds",
                "inbox_dead_letters",
                "inbox_dead_letters_behind",
                "orders_open",
                "orders_oldest_open_seconds",
            ],
        ),
        ("inventory", &["outbox_pending", "inbox_dead_letters"]),
        (
            "billing",
            &["outbox_pending", "inbox_dead_letters", "payments_pending", "payments_oldest_pending_seconds"],
        ),
    ];
    let system = RunningSystem::private(Setup::default()).await?;
    let all = async |gauges: &[(&str, &[&str])], known: bool| {
        eventually(&format!("the gauges to be known: {known}"), CONDITION_DEADLINE, async || {
            for (service, names) in gauges {
                for name in *names {
                    let value = system.metric(service, name).await?;
                    ensure!(value.is_nan() != known, "{name} of {service} is {value}");
                }
            }
            Ok(Some(()))
        })
        .await
    };
    all(&OF_TABLES, true).await?;
    let database = Fault::Kill("database").inject(&system).await?;
    all(&OF_TABLES, false).await?;
    for service in SERVICES {
        eventually(&format!("{service} not to be ready"), CONDITION_DEADLINE, async || {
            let (status, health) = system.health(service).await?;
            ensure!(
                (status, &health["parts"]["database"]["up"]) == (503, &false.into()),
                "{status}: {health}"
            );
            Ok(Some(()))
        })
        .await?;
    }
    database.repair(&system).await?;
    all(&OF_TABLES, true).await?;

    let of_the_broker: [(&str, &[&str]); 3] = [
        ("orders", &["broker_queue_ready{queue=\"orders.events\"}"]),
        ("inventory", &["broker_queue_ready{queue=\"inventory.events\"}"]),
        ("billing", &["broker_queue_ready{queue=\"billing.events\"}"]),
    ];
    all(&of_the_broker, true).await?;
    let broker = Fault::Kill("broker").inject(&system).await?;
    all(&of_the_broker, false).await?;
    broker.repair(&system).await?;
    all(&of_the_broker, true).await
}

/// The consumer waits for a lock, with one message in hand: the others are in the queue, and the gauge has to say so.
#[tokio::test]
async fn messages_that_come_while_a_group_is_applied_are_counted() -> Result<()> {
    let system = RunningSystem::shared(Setup::default().with("INVENTORY_PREFETCH", "1")).await?;
    let mut blocker = system.connect("inventory").await?;
    sqlx::raw_sql("set idle_in_transaction_session_timeout = 0").execute(&mut blocker).await?;
    sqlx::raw_sql("begin; lock table processed_events in share mode").execute(&mut blocker).await?;
    system.order().await?;
    system.until_metric("inventory", "inbox_applying_seconds", 1.0).await?;
    for _ in 0..9 {
        system.order().await?;
    }
    system.until_metric("inventory", "broker_queue_ready", 9.0).await?;
    sqlx::raw_sql("commit").execute(&mut blocker).await?;
    system.held().await?;
    Ok(())
}

#[tokio::test]
async fn services_that_start_before_the_broker_work_once_it_runs() -> Result<()> {
    let system = RunningSystem::private(Setup::default()).await?;
    // As before the first start of any service.
    for service in SERVICES {
        system.processes()?.terminate(service).await?;
        system.broker_api()?.delete(&format!("queues/shop/{service}.events")).await?;
    }
    system.broker_api()?.delete("exchanges/shop/shop.events").await?;
    let broker = Fault::Kill("broker").inject(&system).await?;
    for service in SERVICES {
        system.processes()?.start_again(service).await?;
    }
    eventually("health to show that the broker is down", CONDITION_DEADLINE, async || {
        let (orders, health) = system.health("orders").await?;
        let (billing, _) = system.health("billing").await?;
        ensure!(orders == 200, "orders are accepted, and /readyz answers {orders}");
        ensure!(health["parts"]["broker"]["up"] == false, "orders has not noticed");
        ensure!(billing == 503, "/readyz of billing answers {billing}");
        Ok(Some(()))
    })
    .await?;
    // No queue exists yet. If the publisher did not declare them, the exchange would drop this event.
    system.order().await?;
    broker.repair(&system).await?;
    system.processes()?.wait_ready(CONDITION_DEADLINE).await?;
    system.held().await?;
    Ok(())
}
