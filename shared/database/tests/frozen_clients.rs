//! A client that freezes keeps its locks, or old rows and notifications, until the server ends its session.

use std::time::Duration;

use database::{DatabaseUrl, Pool, PoolKind};
use futures_util::TryStreamExt as _;
use sqlx::{PgPool, postgres::PgListener};
use testbed::eventually;

/// Longer than the limit of 30 s, and the server may be busy.
const END_DEADLINE: Duration = Duration::from_secs(60);

/// Neither `statement_timeout` nor `idle_in_transaction_session_timeout` ends it: the statement is over its limit, but the
/// session waits for room in its socket and does not look.
#[tokio::test]
async fn session_that_sends_to_a_frozen_client_is_ended_and_its_locks_are_free() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    let url: DatabaseUrl = database.url("orders").parse().map_err(anyhow::Error::msg)?;
    let pool = Pool::new(&url, "frozen", 1, PoolKind::Transactions);
    let mut frozen = pool.begin().await?;
    sqlx::query("select pg_advisory_xact_lock(7)").execute(&mut *frozen).await?;
    // Two gigabytes: far more than the sockets hold. The client reads one row, and nothing more.
    let mut rows =
        sqlx::query("select repeat('x', 1000000) from generate_series(1, 2000)").fetch(&mut *frozen);
    assert!(rows.try_next().await?.is_some());

    let others = PgPool::connect(&database.url("orders")).await?;
    eventually("the lock of the frozen client to be free", END_DEADLINE, async || {
        let free: bool = sqlx::query_scalar("select pg_try_advisory_lock(7)").fetch_one(&others).await?;
        Ok(free.then_some(()))
    })
    .await
}

/// Such a session keeps its snapshot while it waits for room in its socket, so vacuum removes nothing, and the queue of
/// notifications grows for all listeners of the server.
#[tokio::test]
async fn session_that_notifies_a_frozen_listener_is_ended() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    let url: DatabaseUrl = database.url("orders").parse().map_err(anyhow::Error::msg)?;
    let mut frozen: PgListener = Pool::new(&url, "frozen", 1, PoolKind::Transactions).listener().await?;
    frozen.listen("events").await?;
    let process: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut frozen).await?;

    let others = PgPool::connect(&database.url("orders")).await?;
    // 32 megabytes: far more than the sockets hold.
    let notify =
        "select pg_notify('events', number || repeat('x', 7900)) from generate_series(1, 4000) as number";
    sqlx::query(notify).execute(&others).await?;
    let state = "select wait_event from pg_stat_activity where pid = $1";
    eventually("the listening session to wait for its client", END_DEADLINE, async || {
        let waits: Option<Option<String>> =
            sqlx::query_scalar(state).bind(process).fetch_optional(&others).await?;
        Ok((waits.flatten().as_deref() == Some("ClientWrite")).then_some(()))
    })
    .await?;
    eventually("the listening session to be ended", END_DEADLINE, async || {
        Ok(sqlx::query(state).bind(process).fetch_optional(&others).await?.is_none().then_some(()))
    })
    .await
}
