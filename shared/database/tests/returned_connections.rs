//! A connection that comes back inside a transaction that sqlx does not know of must not be lent again.

use database::{DatabaseUrl, PoolKind};
use sqlx::PgPool;
use testbed::TestDatabase;

/// A database with an empty table `notes`.
async fn database_with_notes() -> anyhow::Result<TestDatabase> {
    let database = testbed::database().await?;
    let pool = PgPool::connect(&database.url("orders")).await?;
    sqlx::query("create table notes (text text)").execute(&pool).await?;
    Ok(database)
}

/// Inserts a row through a pool whose only connection came back inside an open transaction. Returns how many rows other
/// sessions see.
///
/// A connection comes back like that when a future is dropped between sending `BEGIN` and receiving the answer.
async fn rows_after_an_unfinished_begin(kind: PoolKind, database: &TestDatabase) -> anyhow::Result<i64> {
    let url: DatabaseUrl = database.url("orders").parse().map_err(anyhow::Error::msg)?;
    let pool = database::pool(&url, "test", 1, kind);
    let mut connection = pool.acquire().await?;
    sqlx::raw_sql("begin").execute(&mut *connection).await?;
    drop(connection);
    sqlx::query("insert into notes values ('acknowledged')").execute(&pool).await?;
    let others = PgPool::connect(&database.url("orders")).await?;
    Ok(sqlx::query_scalar("select count(*) from notes").fetch_one(&others).await?)
}

#[tokio::test]
async fn connection_inside_a_transaction_is_not_lent_again() -> anyhow::Result<()> {
    for kind in [PoolKind::Transactions, PoolKind::AsyncCommit] {
        let database = database_with_notes().await?;
        assert_eq!(rows_after_an_unfinished_begin(kind, &database).await?, 1, "{kind:?}");
    }
    Ok(())
}

/// Shows why the check is needed, and why no transaction may be begun on such a pool.
#[tokio::test]
async fn pool_for_statements_does_not_check_and_would_lose_the_next_write() -> anyhow::Result<()> {
    let database = database_with_notes().await?;
    assert_eq!(rows_after_an_unfinished_begin(PoolKind::Statements, &database).await?, 0);
    Ok(())
}
