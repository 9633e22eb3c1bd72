//! What is done once in a database: over a connection that is opened for it, within a deadline.

use std::time::Duration;

use anyhow::{Context as _, Result};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::time::timeout;

/// Executes statements in the database of a URL.
pub async fn execute(url: &str, statements: &str, deadline: Duration) -> Result<()> {
    let done = timeout(deadline, async {
        let mut connection = PgConnection::connect(url).await?;
        sqlx::raw_sql(AssertSqlSafe(statements)).execute(&mut connection).await?;
        connection.close().await
    });
    Ok(done.await.context("the database does not answer")??)
}

/// Runs a query that returns one text in the database of a URL.
pub async fn read(url: &str, query: &str, deadline: Duration) -> Result<String> {
    let value = timeout(deadline, async {
        let mut connection = PgConnection::connect(url).await?;
        let value = sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(&mut connection).await?;
        connection.close().await?;
        Ok::<_, sqlx::Error>(value)
    });
    Ok(value.await.context("the database does not answer")??)
}
