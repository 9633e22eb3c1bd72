//! What a session needs for the promises is set by the pool, whatever the server's defaults are.

use std::time::Duration;

use anyhow::Context as _;
use database::{DatabaseHealth, DatabaseUrl, Pool, PoolKind};
use sqlx::{Connection as _, Executor, PgConnection, PgPool, Postgres};
use testbed::TestDatabase;
use tokio_util::sync::{CancellationToken, DropGuard};

const KINDS: [PoolKind; 3] = [PoolKind::Statements, PoolKind::Transactions, PoolKind::AsyncCommit];
const DEADLINE: Duration = Duration::from_secs(30);

fn url_of(database: &TestDatabase) -> anyhow::Result<DatabaseUrl> {
    database.url("orders").parse().map_err(anyhow::Error::msg)
}

fn pool(database: &TestDatabase, kind: PoolKind) -> anyhow::Result<Pool> {
    Ok(Pool::new(&url_of(database)?, "test", 2, kind))
}

/// Changes a default of this database, for sessions that begin after it.
async fn set_default(database: &TestDatabase, change: &str) -> anyhow::Result<()> {
    let mut admin = PgConnection::connect(&database.admin_url()).await?;
    // One of the defaults would refuse to be changed back.
    sqlx::query("set default_transaction_read_only = off").execute(&mut admin).await?;
    let sql = format!("alter database \"{}\" {change}", database.name());
    // Text from this file; the statement takes no parameters.
    sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut admin).await.context("failed to change a default")?;
    Ok(())
}

async fn show(sessions: impl Executor<'_, Database = Postgres>, setting: &str) -> anyhow::Result<String> {
    Ok(sqlx::query_scalar("select current_setting($1)").bind(setting).fetch_one(sessions).await?)
}

/// The health of a database, which is watched until the second value is dropped.
fn watched(url: DatabaseUrl) -> (DatabaseHealth, DropGuard) {
    let (health, stop) = (DatabaseHealth::default(), CancellationToken::new());
    health.set_prepared();
    tokio::spawn(health.clone().watch(url, stop.clone()));
    (health, stop.drop_guard())
}

#[tokio::test]
async fn commits_and_isolation_do_not_depend_on_defaults_of_the_database() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    set_default(&database, "set synchronous_commit = 'off'").await?;
    set_default(&database, "set default_transaction_isolation = 'repeatable read'").await?;
    let unpinned = PgPool::connect(&database.url("orders")).await?;
    assert_eq!(show(&unpinned, "synchronous_commit").await?, "off", "the defaults have to be bad here");
    for kind in KINDS {
        let pool = pool(&database, kind)?;
        let expected = if kind == PoolKind::AsyncCommit { "off" } else { "on" };
        assert_eq!(show(&pool, "synchronous_commit").await?, expected, "{kind:?}");
        assert_eq!(show(&pool, "transaction_isolation").await?, "read committed", "{kind:?}");
    }
    // A cluster may ask for more than the promises need.
    set_default(&database, "set synchronous_commit = 'remote_apply'").await?;
    for kind in [PoolKind::Statements, PoolKind::Transactions] {
        assert_eq!(show(&pool(&database, kind)?, "synchronous_commit").await?, "remote_apply", "{kind:?}");
    }
    Ok(())
}

#[tokio::test]
async fn health_reports_a_read_only_server_and_the_pool_leaves_it_afterwards() -> anyhow::Result<()> {
    for kind in KINDS {
        let database = testbed::database().await?;
        set_default(&database, "set default_transaction_read_only = on").await?;
        let pool = pool(&database, kind)?;
        let (health, _stop) = watched(url_of(&database)?);
        let probe = health.probe();
        testbed::eventually("health to say read-only", DEADLINE, async || {
            Ok(probe().is_err_and(|reason| reason == "it is read-only").then_some(()))
        })
        .await?;
        let refused = sqlx::query("create table notes (text text)").execute(&pool).await;
        assert!(refused.is_err_and(|error| database::is_unavailable(&error)), "{kind:?}");

        // As after a failover: new connections can write, those that are open cannot.
        set_default(&database, "reset default_transaction_read_only").await?;
        testbed::eventually("the pool to write again", DEADLINE, async || {
            sqlx::query("create table if not exists notes (text text)").execute(&pool).await?;
            Ok(Some(()))
        })
        .await
        .with_context(|| format!("{kind:?}"))?;
        testbed::eventually("health to be good", DEADLINE, async || Ok(probe().is_ok().then_some(())))
            .await?;
    }
    Ok(())
}

/// As before a wraparound of transaction ids, or without room: reads are answered, and every write fails.
#[tokio::test]
async fn health_says_why_writes_fail() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    let owner = PgPool::connect(&database.url("orders")).await?;
    sqlx::raw_sql(
        "create function pg_logical_emit_message(boolean, text, text) returns pg_lsn language plpgsql as $$ begin
             raise exception 'database is not accepting commands' using errcode = '54000'; end $$",
    )
    .execute(&owner)
    .await?;
    // The schema's function hides the server's.
    let url = format!("{}?options=-csearch_path%3Dorders,pg_catalog", database.url("orders"));
    let (health, _stop) = watched(url.parse().map_err(anyhow::Error::msg)?);
    let probe = health.probe();
    testbed::eventually("health to say why", DEADLINE, async || {
        Ok(probe().is_err_and(|reason| reason.contains("not accepting commands")).then_some(()))
    })
    .await?;
    sqlx::raw_sql("drop function orders.pg_logical_emit_message(boolean, text, text)")
        .execute(&owner)
        .await?;
    testbed::eventually("health to be good", DEADLINE, async || Ok(probe().is_ok().then_some(()))).await
}

/// As while it is restored from a backup. A consumer that took this for its messages' fault would set all of them aside.
#[tokio::test]
async fn database_that_is_absent_is_unavailable() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    let url = database.url("orders").replace(database.name(), "absent");
    let refused = PgConnection::connect(&url).await;
    let error = refused.err().context("connected to a database that does not exist")?;
    assert!(database::is_unavailable(&error), "{error}");
    Ok(())
}

/// A statement that was prepared for another schema fails on every connection that has it, once: it is closed then.
#[tokio::test]
async fn statements_are_prepared_again_after_a_column_has_changed() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    let owner = PgPool::connect(&database.url("orders")).await?;
    sqlx::raw_sql("create table things (name text); insert into things values ('one')")
        .execute(&owner)
        .await?;
    for kind in KINDS {
        let pool = pool(&database, kind)?;
        let read = async || {
            let row: (String,) = sqlx::query_as("select name from things").fetch_one(&pool).await?;
            Ok::<_, sqlx::Error>(row.0)
        };
        // On both connections of the pool.
        let (first, second) = (pool.acquire().await?, pool.acquire().await?);
        for mut session in [first, second] {
            sqlx::query("select name from things").fetch_one(&mut *session).await?;
            session.finish();
        }
        let other = if kind == PoolKind::Transactions { "text" } else { "varchar(20)" };
        let sql = format!("alter table things alter column name type {other}");
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&owner).await?;
        for _ in 0..2 {
            let error = read().await.unwrap_err();
            assert!(database::is_unavailable(&error), "{kind:?}: {error}");
        }
        for _ in 0..4 {
            assert_eq!(read().await?, "one", "{kind:?}");
        }
    }
    Ok(())
}
