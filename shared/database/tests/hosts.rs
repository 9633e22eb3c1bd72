//! A URL with several hosts: connections go to the server that accepts writes.

use std::time::Duration;

use anyhow::Context as _;
use database::{DatabaseUrl, Pool, PoolKind};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use testbed::{Postgres, eventually};

const DEADLINE: Duration = Duration::from_secs(60);
/// A statement on a connection to a frozen server does not return. Each service gives up its statements after some seconds.
const STATEMENT_DEADLINE: Duration = Duration::from_secs(3);

/// A server with a table that holds its name.
async fn server(name: &str) -> anyhow::Result<Postgres> {
    let server = Postgres::private().await?;
    let sql = "create role app login password 'app'; create table server (name text, writes int default 0)";
    execute(&server, &format!("{sql}; insert into server values ('{name}'); grant all on server to app"))
        .await?;
    Ok(server)
}

async fn execute(server: &Postgres, sql: &str) -> anyhow::Result<()> {
    let mut admin = PgConnection::connect(&server.admin_url("postgres")).await?;
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await?;
    Ok(admin.close().await?)
}

/// As a standby, or as one that was promoted.
async fn set_read_only(server: &Postgres, is_set: bool) -> anyhow::Result<()> {
    execute(server, &format!("alter role app set default_transaction_read_only = {is_set}")).await
}

/// Waits until the pool writes, and its listener is connected, to this server.
async fn is_used(pool: &Pool, name: &str) -> anyhow::Result<()> {
    eventually(&format!("server {name} to be used"), DEADLINE, async || {
        let names = tokio::time::timeout(STATEMENT_DEADLINE, used_servers(pool)).await??;
        Ok(names.iter().all(|used| used == name).then_some(()))
    })
    .await
}

/// The servers that the pool writes, and that its listener is connected, to.
async fn used_servers(pool: &Pool) -> anyhow::Result<[String; 2]> {
    let sql = "update server set writes = writes + 1 returning name";
    let written = sqlx::query_scalar(sql).fetch_one(pool).await?;
    let mut listener = pool.listener().await?;
    let heard = sqlx::query_scalar("select name from server").fetch_one(&mut listener).await?;
    Ok([written, heard])
}

#[tokio::test]
async fn pool_and_listener_follow_the_server_that_accepts_writes() -> anyhow::Result<()> {
    let (a, b) = tokio::try_join!(server("a"), server("b"))?;
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", b.port(), a.port());
    let url: DatabaseUrl =
        format!("postgres://app:app@{hosts}/postgres").parse().map_err(anyhow::Error::msg)?;
    set_read_only(&b, true).await?;
    for kind in [PoolKind::Statements, PoolKind::Transactions, PoolKind::AsyncCommit] {
        let pool = Pool::new(&url, "test", 2, kind);
        is_used(&pool, "a").await.with_context(|| format!("{kind:?}"))?;
        // A fail-over: the primary is gone, and the standby is promoted.
        a.kill().await?;
        eventually("the pool to find no server", DEADLINE, async || {
            let refused = pool.acquire().await.err();
            Ok(refused.is_some_and(|error| database::is_unavailable(&error)).then_some(()))
        })
        .await?;
        set_read_only(&b, false).await?;
        is_used(&pool, "b").await.with_context(|| format!("{kind:?}"))?;
        // The old one is there again, and the new one freezes.
        a.start().await?;
        b.pause().await?;
        is_used(&pool, "a").await.with_context(|| format!("{kind:?}"))?;
        b.resume().await?;
        set_read_only(&b, true).await?;
    }
    Ok(())
}
