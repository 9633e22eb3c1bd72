//! Servers of one's own: killed, paused, restarted, and still the same server at the same address.

use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use testbed::{Postgres, Rabbitmq, eventually};

async fn exchange_exists(broker: &Rabbitmq, name: &str) -> anyhow::Result<bool> {
    let url = format!("{}/api/exchanges/shop/{name}", broker.api_url());
    let answer = reqwest::Client::new().get(url).timeout(Duration::from_secs(5)).send().await?;
    Ok(answer.status().is_success())
}

#[tokio::test]
async fn a_killed_broker_comes_back_on_its_port_with_its_durable_things() -> anyhow::Result<()> {
    let broker = Rabbitmq::private().await?;
    let url = format!("{}/api/exchanges/shop/kept", broker.api_url());
    let durable = r#"{"type": "topic", "durable": true}"#;
    let put = reqwest::Client::new().put(url).header("content-type", "application/json").body(durable);
    put.send().await?.error_for_status()?;
    let (before, address) = (broker.pid().await, broker.url());
    assert!(before.is_some());

    broker.kill().await?;
    assert_eq!(broker.pid().await, None);
    assert!(!broker.answers().await, "something still answers at {address}");

    broker.start().await?;
    assert!(broker.answers().await);
    assert_eq!(broker.url(), address);
    assert_ne!(broker.pid().await, before);
    assert!(exchange_exists(&broker, "kept").await?);
    assert!(!exchange_exists(&broker, "never-declared").await?);
    Ok(())
}

#[tokio::test]
async fn a_paused_broker_is_silent_and_goes_on_afterwards() -> anyhow::Result<()> {
    let broker = Rabbitmq::private().await?;
    broker.pause().await?;
    assert!(!broker.answers().await);
    broker.resume().await?;
    eventually("an answer", Duration::from_secs(10), async || Ok(broker.answers().await.then_some(()))).await
}

#[tokio::test]
async fn a_killed_database_keeps_what_it_committed() -> anyhow::Result<()> {
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

    // An orderly stop, and a second start.
    server.stop().await?;
    assert!(PgConnection::connect(&server.admin_url("postgres")).await.is_err());
    server.start().await?;
    Ok(())
}

#[tokio::test]
async fn a_paused_database_hangs_its_sessions_and_then_answers_them() -> anyhow::Result<()> {
    let server = Postgres::private().await?;
    let mut session = PgConnection::connect(&server.admin_url("postgres")).await?;
    server.pause().await?;
    let hangs = tokio::time::timeout(Duration::from_millis(500), session.ping()).await;
    assert!(hangs.is_err(), "a paused server answered: {hangs:?}");
    server.resume().await?;
    PgConnection::connect(&server.admin_url("postgres")).await?.ping().await?;
    Ok(())
}
