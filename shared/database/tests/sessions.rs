//! A connection is lent again only if the operation that had it has ended.

use std::time::Duration;

use anyhow::Context as _;
use database::{DatabaseUrl, Pool, PoolKind, Session};
use fault_proxy::{Proxy, Route};
use futures_util::{FutureExt as _, future::join_all};
use sqlx::{Connection as _, PgConnection, PgPool};
use testbed::{TestDatabase, eventually};

const KINDS: [PoolKind; 3] = [PoolKind::Statements, PoolKind::Transactions, PoolKind::AsyncCommit];

/// How long connections that fell silent may keep a pool from lending others.
const SILENCE_DEADLINE: Duration = Duration::from_secs(60);

fn pool(url: &str, connections: u32, kind: PoolKind) -> anyhow::Result<Pool> {
    let url: DatabaseUrl = url.parse().map_err(anyhow::Error::msg)?;
    Ok(Pool::new(&url, "test", connections, kind))
}

/// The server process of a connection.
async fn process(session: &mut Session) -> anyhow::Result<i32> {
    Ok(sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut **session).await?)
}

/// Makes idle connections look as if they had been idle for so long, without waiting.
async fn let_time_pass(duration: Duration) {
    tokio::time::pause();
    tokio::time::advance(duration).await;
    tokio::time::resume();
}

/// A database with an empty table `notes`.
async fn database_with_notes() -> anyhow::Result<TestDatabase> {
    let database = testbed::database().await?;
    let mut owner = PgConnection::connect(&database.url("orders")).await?;
    sqlx::query("create table notes (text text)").execute(&mut owner).await?;
    Ok(database)
}

/// As when a future is dropped between sending `BEGIN` and receiving the answer: sqlx knows of no transaction. What the next
/// borrower writes would be acknowledged, and rolled back later.
#[tokio::test]
async fn connection_inside_a_transaction_is_not_lent_again() -> anyhow::Result<()> {
    for kind in KINDS {
        let database = database_with_notes().await?;
        let pool = pool(&database.url("orders"), 1, kind)?;
        let mut session = pool.acquire().await?;
        sqlx::raw_sql("begin").execute(&mut *session).await?;
        drop(session);
        sqlx::query("insert into notes values ('acknowledged')").execute(&pool).await?;
        let others = PgPool::connect(&database.url("orders")).await?;
        let seen: i64 = sqlx::query_scalar("select count(*) from notes").fetch_one(&others).await?;
        assert_eq!(seen, 1, "{kind:?}: the row was written into a transaction that is never committed");
    }
    Ok(())
}

/// A handler that drops an error must not be told that its effect is committed.
#[tokio::test]
async fn commit_of_a_failed_transaction_fails() -> anyhow::Result<()> {
    let database = database_with_notes().await?;
    let pool = pool(&database.url("orders"), 1, PoolKind::Transactions)?;
    let mut session = pool.begin().await?;
    sqlx::query("insert into notes values ('lost')").execute(&mut *session).await?;
    assert!(sqlx::query("select 1 / 0").execute(&mut *session).await.is_err());
    assert!(session.commit().await.is_err());
    let mut session = pool.begin().await?;
    sqlx::query("insert into notes values ('kept')").execute(&mut *session).await?;
    session.commit().await?;
    let notes: Vec<String> = sqlx::query_scalar("select text from notes").fetch_all(&pool).await?;
    assert_eq!(notes, ["kept"]);
    Ok(())
}

#[tokio::test]
async fn next_operation_has_the_same_connection_and_nothing_is_asked_in_between() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    let pool = pool(&database.url("orders"), 2, PoolKind::Transactions)?;
    let mut session = pool.acquire().await?;
    let first = process(&mut session).await?;
    session.finish();
    let mut session = pool.acquire().await?;
    let mut admin = PgConnection::connect(&database.admin_url()).await?;
    let last: String = sqlx::query_scalar("select query from pg_stat_activity where pid = $1")
        .bind(first)
        .fetch_one(&mut admin)
        .await?;
    assert_eq!(last, "select pg_backend_pid()", "something was asked between the operations");
    assert_eq!(process(&mut session).await?, first);
    assert_ne!(process(&mut pool.acquire().await?).await?, first, "two operations at once have two");
    Ok(())
}

#[tokio::test]
async fn idle_connection_is_replaced_if_its_server_is_gone_or_read_only() -> anyhow::Result<()> {
    let database = database_with_notes().await?;
    let pool = pool(&database.url("orders"), 1, PoolKind::Transactions)?;
    let mut admin = PgConnection::connect(&database.admin_url()).await?;

    let mut session = pool.acquire().await?;
    let lost = process(&mut session).await?;
    session.finish();
    sqlx::query("select pg_terminate_backend($1, 10000)").bind(lost).execute(&mut admin).await?;
    let_time_pass(Duration::from_secs(6)).await;
    let mut session = pool.acquire().await?;
    assert_ne!(process(&mut session).await.context("the lost connection was lent")?, lost);

    // As a connection to a server that has become a standby.
    sqlx::raw_sql("set default_transaction_read_only = on").execute(&mut *session).await?;
    session.finish();
    let_time_pass(Duration::from_secs(6)).await;
    sqlx::query("insert into notes values ('written')").execute(&pool).await?;
    Ok(())
}

/// A server that is drained, or whose name leads to another one now, would be used as long as the process lives.
#[tokio::test]
async fn connection_is_replaced_after_half_an_hour_although_it_is_always_in_use() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    let pool = pool(&database.url("orders"), 1, PoolKind::Transactions)?;
    let mut session = pool.acquire().await?;
    let first = process(&mut session).await?;
    session.finish();
    for minutes in [10, 10, 11] {
        let mut session = pool.acquire().await?;
        assert_eq!(process(&mut session).await?, first);
        let_time_pass(Duration::from_secs(60 * minutes)).await;
        session.finish();
    }
    assert_ne!(process(&mut pool.acquire().await?).await?, first);
    Ok(())
}

/// A server that has stopped answering, behind a network that still accepts what is sent: no time-out of TCP ends that. New
/// connections work, as after a fail-over.
#[tokio::test]
async fn pool_lends_connections_again_after_all_of_its_own_fell_silent() -> anyhow::Result<()> {
    const CONNECTIONS: u32 = 3;
    let database = database_with_notes().await?;
    let url = database.url("orders");
    let network = Proxy::start(vec![Route::to("database", &url)?]).await?;
    let pool = pool(&network.through("database", &url)?, CONNECTIONS, PoolKind::Statements)?;
    let sessions = join_all((0..CONNECTIONS).map(|_| pool.acquire())).await;
    network.silence_open("database")?;
    for session in sessions {
        let mut session = session?;
        // Sent, and given up before the answer: a client has hung up.
        assert!(sqlx::query("select 1").execute(&mut *session).now_or_never().is_none());
    }
    eventually("the pool to lend a connection", SILENCE_DEADLINE, async || {
        Ok(sqlx::query("insert into notes values ('written')").execute(&pool).await.ok().map(drop))
    })
    .await
}

/// Without this, clients that give up slow requests would make the server work on more and more of them at once.
#[tokio::test]
async fn operation_that_was_given_up_keeps_its_place_until_the_server_has_answered() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    let pool = pool(&database.url("orders"), 1, PoolKind::Transactions)?;
    let mut admin = PgConnection::connect(&database.admin_url()).await?;
    sqlx::query("select pg_advisory_lock(1)").execute(&mut admin).await?;
    let mut session = pool.acquire().await?;
    // On a busy machine the statement may wait for longer than the pool lets it.
    sqlx::raw_sql("set statement_timeout = 0").execute(&mut *session).await?;
    let waiting = process(&mut session).await?;
    {
        let mut lock = std::pin::pin!(sqlx::query("select pg_advisory_lock(1)").execute(&mut *session));
        eventually("the statement to wait", SILENCE_DEADLINE, async || {
            assert!(lock.as_mut().now_or_never().is_none());
            let waits = sqlx::query("select from pg_locks where pid = $1 and not granted").bind(waiting);
            Ok(waits.fetch_optional(&mut admin).await?.map(drop))
        })
        .await?;
    }
    drop(session);
    assert!(pool.acquire().await.is_err(), "the server still works for the one that was given up");
    sqlx::query("select pg_advisory_unlock(1)").execute(&mut admin).await?;
    eventually("the place to be free", SILENCE_DEADLINE, async || Ok(pool.acquire().await.ok()))
        .await
        .map(drop)
}
