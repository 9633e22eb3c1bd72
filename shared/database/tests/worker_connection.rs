//! The connection that a worker keeps between its rounds.

use std::time::Duration;

use anyhow::Context as _;
use database::{DatabaseUrl, PoolKind, RoundConnection, WorkerConnection};
use sqlx::{Connection as _, PgConnection, PgPool};
use testbed::TestDatabase;

/// A worker's connection from a pool of this many, whose transactions are checked.
fn worker(database: &TestDatabase, connections: u32) -> anyhow::Result<WorkerConnection> {
    let url: DatabaseUrl = database.url("orders").parse().map_err(anyhow::Error::msg)?;
    Ok(WorkerConnection::new(database::pool(&url, "test", connections, PoolKind::Transactions)))
}

/// The server process of a connection.
async fn session(round: &mut RoundConnection) -> anyhow::Result<i32> {
    Ok(sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut **round).await?)
}

/// Makes the kept connection look as if it had been idle for so long, without waiting.
async fn let_time_pass(duration: Duration) {
    tokio::time::pause();
    tokio::time::advance(duration).await;
    tokio::time::resume();
}

#[tokio::test]
async fn next_round_has_the_kept_connection_and_asks_nothing_before() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    let worker = worker(&database, 2)?;
    let mut round = worker.take().await?;
    let first = session(&mut round).await?;
    worker.keep(round);
    let mut round = worker.take().await?;
    let mut admin = PgConnection::connect(&database.admin_url()).await?;
    let last: String = sqlx::query_scalar("select query from pg_stat_activity where pid = $1")
        .bind(first)
        .fetch_one(&mut admin)
        .await?;
    assert_eq!(last, "select pg_backend_pid()", "something was asked between the rounds");
    assert_eq!(session(&mut round).await?, first);
    Ok(())
}

#[tokio::test]
async fn clones_share_the_kept_connection_and_work_at_the_same_time() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    let worker = worker(&database, 2)?;
    let mut round = worker.take().await?;
    let first = session(&mut round).await?;
    worker.keep(round);
    let (mut one, mut other) = (worker.clone().take().await?, worker.take().await?);
    assert_eq!(session(&mut one).await?, first);
    assert_ne!(session(&mut other).await?, first);
    // The second one that is kept replaces the first, which goes back to the pool: neither leaks.
    worker.keep(one);
    worker.keep(other);
    let (_one, _other) = (worker.take().await?, worker.take().await?);
    Ok(())
}

/// A round whose future was dropped between sending `BEGIN` and receiving the answer: sqlx knows of no transaction.
#[tokio::test]
async fn round_that_ends_inside_a_transaction_takes_its_connection_with_it() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    let worker = worker(&database, 1)?;
    let mut round = worker.take().await?;
    sqlx::raw_sql("create table notes (text text)").execute(&mut *round).await?;
    worker.keep(round);
    let mut round = worker.take().await?;
    sqlx::raw_sql("begin").execute(&mut *round).await?;
    drop(round);
    let mut round = worker.take().await?;
    sqlx::query("insert into notes values ('acknowledged')").execute(&mut *round).await?;
    let others = PgPool::connect(&database.url("orders")).await?;
    let seen: i64 = sqlx::query_scalar("select count(*) from notes").fetch_one(&others).await?;
    assert_eq!(seen, 1, "the row was written into a transaction that is never committed");
    Ok(())
}

#[tokio::test]
async fn kept_connection_that_was_idle_is_replaced_if_its_server_is_gone_or_read_only() -> anyhow::Result<()>
{
    let database = testbed::database().await?;
    let worker = worker(&database, 1)?;
    let mut admin = PgConnection::connect(&database.admin_url()).await?;

    let mut round = worker.take().await?;
    let lost = session(&mut round).await?;
    worker.keep(round);
    sqlx::query("select pg_terminate_backend($1, 10000)").bind(lost).execute(&mut admin).await?;
    let_time_pass(Duration::from_secs(2)).await;
    let mut round = worker.take().await.context("the lost connection was lent")?;
    assert_ne!(session(&mut round).await?, lost);

    // As a connection to a server that has become a standby.
    let stale = session(&mut round).await?;
    sqlx::raw_sql("set default_transaction_read_only = on").execute(&mut *round).await?;
    worker.keep(round);
    let_time_pass(Duration::from_secs(2)).await;
    let mut round = worker.take().await?;
    assert_ne!(session(&mut round).await?, stale);
    sqlx::raw_sql("create table notes (text text)").execute(&mut *round).await?;
    Ok(())
}
