//! The broker is not started yet; a database does not answer. `broker_failures.rs` has the failures of a broker that runs. Kills under
//! load are drills: `broker-kill`, `database-kill`.

use anyhow::{Result, ensure};
use demo::lab::{CONDITION_DEADLINE, Setup, Stage};
use sqlx::{Connection as _, PgConnection};
use testbed::{DatabaseUrls, Passwords, Postgres, Rabbitmq, System, SystemOptions, eventually};

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
    let (postgres, broker) = (Postgres::private().await?, Rabbitmq::private().await?);
    let passwords = Passwords::all("secret");
    testbed::bootstrap(&postgres.admin_url("postgres"), &passwords).await?;
    let urls = DatabaseUrls::new(&postgres.admin_url("postgres"), &passwords)?;
    let system = System::start(SystemOptions::new(urls.clone(), broker.url(), Setup::default())).await?;
    system.wait_ready(CONDITION_DEADLINE).await?;
    let stage = Stage::around(system, &urls.auditor).await?;
    let all = async |gauges: &[(&str, &[&str])], known: bool| {
        eventually(&format!("the gauges to be known: {known}"), CONDITION_DEADLINE, async || {
            for (service, names) in gauges {
                for name in *names {
                    let value = stage.counter(service, name).await?;
                    ensure!(value.is_nan() != known, "{name} of {service} is {value}");
                }
            }
            Ok(Some(()))
        })
        .await
    };
    all(&OF_TABLES, true).await?;
    postgres.kill().await?;
    all(&OF_TABLES, false).await?;
    for service in ["orders", "inventory", "billing"] {
        eventually(&format!("{service} not to be ready"), CONDITION_DEADLINE, async || {
            let (status, health) = stage.health(service).await?;
            ensure!(
                (status, &health["parts"]["database"]["up"]) == (503, &false.into()),
                "{status}: {health}"
            );
            Ok(Some(()))
        })
        .await?;
    }
    postgres.start().await?;
    all(&OF_TABLES, true).await?;

    let of_the_broker: [(&str, &[&str]); 3] = [
        ("orders", &["broker_queue_ready{queue=\"orders.events\"}"]),
        ("inventory", &["broker_queue_ready{queue=\"inventory.events\"}"]),
        ("billing", &["broker_queue_ready{queue=\"billing.events\"}"]),
    ];
    all(&of_the_broker, true).await?;
    broker.kill().await?;
    all(&of_the_broker, false).await?;
    broker.start().await?;
    all(&of_the_broker, true).await
}

/// The consumer waits for a lock, with one message in hand: the others are in the queue, and the gauge has to say so.
#[tokio::test]
async fn messages_that_come_while_a_group_is_applied_are_counted() -> Result<()> {
    let vhost = testbed::vhost().await?;
    let stage = Stage::ready(&vhost.url(), Setup::default().with("INVENTORY_PREFETCH", "1")).await?;
    let mut blocker = PgConnection::connect(&stage.database_url("inventory")?).await?;
    sqlx::raw_sql("set idle_in_transaction_session_timeout = 0").execute(&mut blocker).await?;
    sqlx::raw_sql("begin; lock table processed_events in share mode").execute(&mut blocker).await?;
    stage.order().await?;
    eventually("the first message to be held", CONDITION_DEADLINE, async || {
        Ok((stage.counter("inventory", "inbox_applying_seconds").await? > 1.0).then_some(()))
    })
    .await?;
    for _ in 0..9 {
        stage.order().await?;
    }
    eventually("nine messages to be shown", CONDITION_DEADLINE, async || {
        let waiting = stage.counter("inventory", "broker_queue_ready").await?;
        ensure!(waiting >= 9.0, "{waiting} messages are shown");
        Ok(Some(()))
    })
    .await?;
    sqlx::raw_sql("commit").execute(&mut blocker).await?;
    stage.held().await?;
    Ok(())
}

#[tokio::test]
async fn services_that_start_before_the_broker_work_once_it_runs() -> Result<()> {
    let broker = Rabbitmq::private().await?;
    broker.stop().await?;
    let stage = Stage::start(&broker.url(), Setup::default()).await?;
    eventually("health to show that the broker is down", CONDITION_DEADLINE, async || {
        let (orders, health) = stage.health("orders").await?;
        let (billing, _) = stage.health("billing").await?;
        ensure!(orders == 200, "orders are accepted, and /readyz answers {orders}");
        ensure!(health["parts"]["broker"]["up"] == false, "orders has not noticed");
        ensure!(billing == 503, "/readyz of billing answers {billing}");
        Ok(Some(()))
    })
    .await?;
    // No queue exists yet. If the publisher did not declare them, the exchange would drop this event.
    stage.order().await?;
    broker.start().await?;
    stage.system.wait_ready(CONDITION_DEADLINE).await?;
    stage.held().await?;
    Ok(())
}
