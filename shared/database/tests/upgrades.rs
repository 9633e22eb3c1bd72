//! A schema that is migrated while old processes run, or that is newer than the binary.

use std::{borrow::Cow, time::Duration};

use database::{DatabaseUrl, prepare_within};
use sqlx::{
    Connection as _, PgConnection, PgPool, SqlSafeStr as _,
    migrate::{Migration, MigrationType, Migrator},
};
use testbed::{TestDatabase, eventually};
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(30);

fn migrator(migrations: &[(i64, &'static str)]) -> Migrator {
    let migration = |&(version, sql): &(i64, &'static str)| {
        Migration::new(version, Cow::Borrowed("test"), MigrationType::Simple, sql.into_sql_str(), false)
    };
    Migrator::with_migrations(migrations.iter().map(migration).collect())
}

async fn prepared(database: &TestDatabase, migrator: &Migrator) -> anyhow::Result<Result<bool, String>> {
    prepared_within(Duration::from_secs(120), database, "orders", migrator).await
}

async fn prepared_within(
    limit: Duration,
    database: &TestDatabase,
    service: &str,
    migrator: &Migrator,
) -> anyhow::Result<Result<bool, String>> {
    let url: DatabaseUrl = database.url(service).parse().map_err(anyhow::Error::msg)?;
    let prepared = prepare_within(limit, &url, &[migrator], &CancellationToken::new()).await;
    Ok(prepared.map_err(|invalid| invalid.0))
}

const FIRST: (i64, &str) = (1001, "create table things (id int)");
const SECOND: (i64, &str) = (1002, "alter table things add column name text");

/// In a roll-out an old process may restart after the new one has migrated; and sometimes a release is taken back.
#[tokio::test]
async fn older_binary_starts_on_a_newer_schema() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    assert_eq!(prepared(&database, &migrator(&[FIRST, SECOND])).await?, Ok(true));
    assert_eq!(prepared(&database, &migrator(&[FIRST])).await?, Ok(true));
    Ok(())
}

#[tokio::test]
async fn schema_of_another_history_is_refused() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    let (other, changed) = ((1000, "select 1"), (1001, "create table other (id int)"));
    assert_eq!(prepared(&database, &migrator(&[other, FIRST])).await?, Ok(true));
    let missing = prepared(&database, &migrator(&[FIRST, SECOND])).await?;
    assert!(missing.is_err_and(|problem| problem.contains("1000")), "an older migration is unknown");
    let different = prepared(&database, &migrator(&[other, changed])).await?;
    assert!(different.is_err_and(|problem| problem.contains("1001")), "a migration was changed");
    Ok(())
}

/// What wants a table waits behind a migration that waits for it: without a limit, one long transaction would stop every
/// writer of the running processes.
#[tokio::test]
async fn migration_that_waits_for_a_lock_stops_no_writer_for_long() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    assert_eq!(prepared(&database, &migrator(&[FIRST])).await?, Ok(true));
    let pool = PgPool::connect(&database.url("orders")).await?;
    let mut long = pool.begin().await?;
    sqlx::query("insert into things values (1)").execute(&mut *long).await?;
    let newer = migrator(&[FIRST, SECOND]);
    let migrating = prepared(&database, &newer);
    let waiting = "select count(*) from pg_stat_activity
                   where application_name = 'migrate' and wait_event_type = 'Lock' and datname = current_database()";
    let writing = async {
        eventually("the migration to wait", DEADLINE, async || {
            let waiting: i64 = sqlx::query_scalar(waiting).fetch_one(&pool).await?;
            Ok((waiting == 1).then_some(()))
        })
        .await?;
        let writing = sqlx::query("insert into things values (2)").execute(&pool);
        tokio::time::timeout(DEADLINE, writing).await??;
        long.commit().await?;
        anyhow::Ok(())
    };
    let (migrated, written) = tokio::join!(migrating, writing);
    written?;
    assert_eq!(migrated?, Ok(true));
    Ok(())
}

/// Given up by its client alone, the server would go on with it, and the next attempt would begin again, without end.
#[tokio::test]
async fn migration_that_takes_too_long_is_cancelled_by_the_server_and_named() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    assert_eq!(prepared(&database, &migrator(&[FIRST])).await?, Ok(true));
    let long = migrator(&[FIRST, (1002, "lock table things; select pg_sleep(3600)")]);
    let refused = prepared_within(Duration::from_secs(1), &database, "orders", &long).await?.unwrap_err();
    assert!(refused.contains("migration 1002"), "{refused}");
    let pool = PgPool::connect(&database.url("orders")).await?;
    sqlx::query("set lock_timeout = '10s'").execute(&pool).await?;
    sqlx::query("insert into things values (1)").execute(&pool).await?;
    Ok(())
}

#[tokio::test]
async fn service_migrates_while_another_service_does() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    let mut gate = PgConnection::connect(&database.admin_url()).await?;
    sqlx::query("select pg_advisory_lock(1)").execute(&mut gate).await?;
    let gated = migrator(&[(1001, "set local lock_timeout = 0; select pg_advisory_xact_lock(1)")]);
    let other = async {
        eventually("the migration to wait", DEADLINE, async || {
            let sql = "select from pg_locks where locktype = 'advisory' and not granted
                       and database = (select oid from pg_database where datname = current_database())";
            Ok(sqlx::query(sql).fetch_optional(&mut gate).await?.map(drop))
        })
        .await?;
        let first = migrator(&[FIRST]);
        let prepared = prepared_within(DEADLINE, &database, "billing", &first);
        assert_eq!(tokio::time::timeout(DEADLINE, prepared).await??, Ok(true));
        sqlx::query("select pg_advisory_unlock(1)").execute(&mut gate).await?;
        anyhow::Ok(())
    };
    let (prepared, other) = tokio::join!(prepared(&database, &gated), other);
    other?;
    assert_eq!(prepared?, Ok(true));
    Ok(())
}
