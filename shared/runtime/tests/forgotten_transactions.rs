//! A connection that comes back inside a transaction nobody knows of is not lent again.

use runtime::database::{self, DatabaseUrl, Purpose};
use sqlx::PgPool;
use testbed::TestDatabase;

/// One pooled connection, on which somebody's `BEGIN` was sent and forgotten: what is left when a future is dropped
/// between sqlx's sending it and the answer. Returns how many rows others see that the next borrower has written.
async fn rows_after_a_forgotten_begin(purpose: Purpose, database: &TestDatabase) -> anyhow::Result<i64> {
    let url: DatabaseUrl = database.url("orders").parse().map_err(anyhow::Error::msg)?;
    let pool = database::pool(&url, "test", 1, purpose);
    let mut victim = pool.acquire().await?;
    sqlx::raw_sql("begin").execute(&mut *victim).await?;
    drop(victim);
    sqlx::query("insert into notes values ('acknowledged')").execute(&pool).await?;
    let others = PgPool::connect(&database.url("orders")).await?;
    Ok(sqlx::query_scalar("select count(*) from notes").fetch_one(&others).await?)
}

#[tokio::test]
async fn the_next_borrower_s_write_is_not_swallowed() -> anyhow::Result<()> {
    for purpose in [Purpose::Transactions, Purpose::Marks] {
        let database = testbed::database().await?;
        let pool = PgPool::connect(&database.url("orders")).await?;
        sqlx::query("create table notes (text text)").execute(&pool).await?;
        assert_eq!(rows_after_a_forgotten_begin(purpose, &database).await?, 1, "{purpose:?}");
    }
    Ok(())
}

#[tokio::test]
async fn without_the_question_it_would_be_which_is_why_a_pool_for_statements_never_begins()
-> anyhow::Result<()> {
    let database = testbed::database().await?;
    let pool = PgPool::connect(&database.url("orders")).await?;
    sqlx::query("create table notes (text text)").execute(&pool).await?;
    assert_eq!(rows_after_a_forgotten_begin(Purpose::Statements, &database).await?, 0);
    Ok(())
}
