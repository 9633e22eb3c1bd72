//! A private server keeps its address and its data when a test kills, pauses or restarts it.

use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use testbed::{Postgres, Rabbitmq, eventually};

async fn exchange_exists(broker: &Rabbitmq, name: &str) -> anyhow::Result<bool> {
    let url = format!("{}/api/exchanges/shop/{name}", broker.api_url());
    let response = reqwest::Client::new().get(url).timeout(Duration::from_secs(5)).send().await?;
    Ok(response.status().is_success())
}

#[tokio::test]
async fn killed_broker_restarts_on_its_port_and_keeps_durable_exchanges() -> anyhow::Result<()> {
    let broker = Rabbitmq::private().await?;
    let url = format!("{}/api/exchanges/shop/kept", broker.api_url());
    let durable = r#"{"type": "topic", "durable": true}"#;
    let put = reqwest::Client::new().put(url).header("content-type", "application/json").body(durable);
    put.send().await?.error_for_status()?;
    // RabbitMQ writes declarations to disk a moment after it has confirmed them, and at an orderly stop at the latest.
    broker.stop().await?;
    broker.start().await?;
    let (before, address) = (broker.pid().await, broker.url());
    assert!(before.is_some());

    broker.kill().await?;
    assert_eq!(broker.pid().await, None);
    assert!(!broker.answers().await, "a broker still answers at {address}");

    broker.start().await?;
    assert!(broker.answers().await);
    assert_eq!(broker.url(), address);
    assert_ne!(broker.pid().await, before);
    assert!(exchange_exists(&broker, "kept").await?);
    assert!(!exchange_exists(&broker, "never-declared").await?);
    Ok(())
}

#[tokio::test]
async fn paused_broker_does_not_answer_until_it_is_resumed() -> anyhow::Result<()> {
    let broker = Rabbitmq::private().await?;
    broker.pause().await?;
    assert!(!broker.answers().await);
    broker.resume().await?;
    eventually("the broker to answer", Duration::from_secs(10), async || {
        Ok(broker.answers().await.then_some(()))
    })
    .await
}

#[tokio::test]
async fn killed_database_server_keeps_committed_rows() -> anyhow::Result<()> {
    let server = Postgres::private().await?;
    let mut session = PgConnection::connect(&server.admin_url("postgres")).await?;
    sqlx::raw_sql("create table kept (id int); insert into kept values (7)").execute(&mut session).await?;

    server.kill().await?;
    assert_eq!(server.pid().await, None);
    assert!(session.ping().await.is_err(), "the session outlived its server");

    server.start().await?;
    let mut session = PgConnection::connect(&server.admin_url("postgres")).await?;
    let kept: i32 = sqlx::query_scalar("select id from kept").fetch_one(&mut session).await?;
    assert_eq!(kept, 7);

    // It also starts again after an orderly stop.
    server.stop().await?;
    assert!(PgConnection::connect(&server.admin_url("postgres")).await.is_err());
    server.start().await?;
    Ok(())
}

#[tokio::test]
async fn paused_database_server_does_not_answer_until_it_is_resumed() -> anyhow::Result<()> {
    let server = Postgres::private().await?;
    let mut session = PgConnection::connect(&server.admin_url("postgres")).await?;
    server.pause().await?;
    let hangs = tokio::time::timeout(Duration::from_millis(500), session.ping()).await;
    assert!(hangs.is_err(), "a paused server answered: {hangs:?}");
    server.resume().await?;
    PgConnection::connect(&server.admin_url("postgres")).await?.ping().await?;
    Ok(())
}
