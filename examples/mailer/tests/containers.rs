//! How your own project tests such a consumer: with testcontainers, and nothing of this repository's testbed.
//!
//! `cargo test -p mailer --features containers` needs a container engine. The feature keeps the engine's client out of every
//! other build.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot continue fails with a message")]

use std::{
    process::{Child, Command},
    time::Duration,
};

use events::{NewEvent, OrderConfirmed, TraceContext};
use messaging::{Outgoing, PublishOutcome, Publisher as _};
use rabbitmq::{ConfirmingPublisher, ConnectionStatus, Endpoint};
use sqlx::{PgPool, raw_sql};
use testcontainers::{
    GenericImage, ImageExt as _,
    core::{IntoContainerPort as _, WaitFor},
    runners::AsyncRunner as _,
};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

const DEADLINE: Duration = Duration::from_secs(60);

/// Kills the process at the end of the test.
struct Mailer(Child);

impl Drop for Mailer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn event_that_is_published_twice_writes_one_mail() -> anyhow::Result<()> {
    // Its first start listens on a socket only, so the first "ready" of the two on standard error means nothing.
    let postgres = GenericImage::new("postgres", "17-trixie")
        .with_exposed_port(5432.tcp())
        .with_wait_for(WaitFor::message_on_stderr("database system is ready to accept connections"))
        .with_env_var("POSTGRES_PASSWORD", "postgres")
        .start();
    let rabbitmq = GenericImage::new("rabbitmq", "4.2-management")
        .with_exposed_port(5672.tcp())
        .with_wait_for(WaitFor::message_on_stdout("Server startup complete"))
        .with_env_var("RABBITMQ_DEFAULT_VHOST", "shop")
        .with_ulimit("nofile", 16_384, Some(16_384))
        .start();
    let (postgres, rabbitmq) = tokio::try_join!(postgres, rabbitmq)?;
    let database = format!("127.0.0.1:{}/postgres", postgres.get_host_port_ipv4(5432).await?);
    let amqp_url = format!("amqp://guest:guest@127.0.0.1:{}/shop", rabbitmq.get_host_port_ipv4(5672).await?);

    let admin =
        eventually(async || PgPool::connect(&format!("postgres://postgres:postgres@{database}")).await.ok())
            .await;
    raw_sql(include_str!("../bootstrap.sql")).execute(&admin).await?;
    raw_sql("alter role mailer password 'mailer'").execute(&admin).await?;
    let mut mailer = Command::new(env!("CARGO_BIN_EXE_mailer"));
    mailer.env("MAILER_DATABASE_URL", format!("postgres://mailer:mailer@{database}"));
    let _mailer =
        Mailer(mailer.env("MAILER_AMQP_URL", &amqp_url).env("MAILER_HTTP_ADDRESS", "127.0.0.1:0").spawn()?);

    let endpoint = Endpoint::new(&amqp_url, "test")?;
    let mut publisher =
        ConfirmingPublisher::new(endpoint, ConnectionStatus::new("test"), Duration::from_secs(10));
    let rows = async |table: &str| -> Option<i64> {
        let sql = format!("select count(*) from mailer.{table}");
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&admin).await.ok()
    };
    let (first, second) = (confirmed(Uuid::now_v7())?, confirmed(Uuid::now_v7())?);
    // Until the mailer has declared its queue, a message reaches the other services only.
    eventually(async || {
        publisher.ready().await.ok()?;
        publisher.publish(&[&first, &first]).await;
        (rows("mails").await? > 0).then_some(())
    })
    .await;
    let outcomes = publisher.publish(&[&second]).await;
    assert_eq!(outcomes, [PublishOutcome::Confirmed]);
    // It is behind all copies of the first one.
    eventually(async || (rows("processed_events").await? == 2).then_some(())).await;
    assert_eq!(rows("mails").await, Some(2), "one for each event");
    Ok(())
}

fn confirmed(order_id: Uuid) -> anyhow::Result<Outgoing> {
    let event = NewEvent::of(order_id, 2, &TraceContext::root(), &OrderConfirmed { order_id })?;
    Ok(Outgoing {
        id: event.event_id,
        event_type: event.event_type.into(),
        lane: event.lane,
        body: event.payload.into_bytes(),
        traceparent: None,
    })
}

/// Tries until there is a result.
async fn eventually<T>(mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(result) = attempt().await {
            return result;
        }
        assert!(began.elapsed() < DEADLINE, "no result within {DEADLINE:?}");
        sleep(Duration::from_millis(100)).await;
    }
}
