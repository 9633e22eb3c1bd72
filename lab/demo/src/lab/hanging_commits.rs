//! Commits that wait: the server is told of a synchronous standby that does not exist.

use std::time::Duration;

use anyhow::{Context as _, Result};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use testbed::eventually;
use tokio::time::timeout;

/// How long the server may take to do so.
const DEADLINE: Duration = Duration::from_secs(20);

/// Makes commits wait for a standby that does not exist, and returns when one does. PostgreSQL's checkpointer reads the
/// new setting in its own time, and until then commits pass.
pub(crate) async fn hang_commits(admin_url: &str) -> Result<()> {
    set_standby(admin_url, "= 'missing'").await?;
    let (mut observer, writer) =
        (PgConnection::connect(admin_url).await?, PgConnection::connect(admin_url).await?);
    let one_waits = eventually("a commit to wait for the standby", DEADLINE, async || {
        let sql = "select exists (select from pg_stat_activity where wait_event = 'SyncRep')";
        let waits: bool = sqlx::query_scalar(sql).fetch_one(&mut observer).await?;
        Ok(waits.then_some(()))
    });
    tokio::select! {
        failed = commit_repeatedly(writer) => failed,
        waits = one_waits => waits,
    }
}

/// Ends [`hang_commits`].
pub(crate) async fn release_commits(admin_url: &str) -> Result<()> {
    set_standby(admin_url, "to default").await
}

/// Commits until a commit fails.
async fn commit_repeatedly(mut writer: PgConnection) -> Result<()> {
    loop {
        // A transaction with an id writes a commit record.
        sqlx::query("select pg_current_xact_id()").execute(&mut writer).await?;
    }
}

/// Sets which standby a commit waits for, as the administrator of a server.
async fn set_standby(admin_url: &str, value: &str) -> Result<()> {
    let setting = async {
        let mut administrator = PgConnection::connect(admin_url).await?;
        // Two calls, because `alter system` refuses to run in a transaction.
        for statement in
            [&format!("alter system set synchronous_standby_names {value}"), "select pg_reload_conf()"]
        {
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut administrator).await?;
        }
        Ok(administrator.close().await?)
    };
    timeout(DEADLINE, setting).await.context("failed to set the standby in time")?
}
