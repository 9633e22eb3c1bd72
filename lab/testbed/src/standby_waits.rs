//! Commits that wait for a synchronous standby.

use std::{
    fmt::Debug,
    pin::{Pin, pin},
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use sqlx::{Connection as _, PgConnection};

use crate::eventually::eventually;
use crate::sql;

/// How long the server may take: its checkpointer reads a new setting between two files that it syncs.
const DEADLINE: Duration = Duration::from_secs(60);

/// Makes commits wait for a standby that does not exist, and returns when they do. PostgreSQL's checkpointer reads the
/// new setting in its own time, and until then commits pass.
pub async fn hang_commits(admin_url: &str) -> Result<()> {
    set_standby(admin_url, "= 'missing'").await?;
    let mut writer = PgConnection::connect(admin_url).await?;
    let process: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut writer).await?;
    tokio::select! {
        failed = commit_repeatedly(&mut writer) => failed?,
        waits = commit_waits(admin_url) => waits?,
    }
    // Until its session is gone, its commit would be taken for one that the caller makes.
    execute(admin_url, &format!("select pg_terminate_backend({process}, 10000)")).await
}

/// Ends [`hang_commits`].
pub async fn release_commits(admin_url: &str) -> Result<()> {
    set_standby(admin_url, "to default").await
}

/// Waits until a commit waits.
pub async fn commit_waits(admin_url: &str) -> Result<()> {
    let mut observer = PgConnection::connect(admin_url).await?;
    eventually("a commit to wait for the standby", DEADLINE, async || {
        let sql = "select exists (select from pg_stat_activity where wait_event = 'SyncRep')";
        let waits: bool = sqlx::query_scalar(sql).fetch_one(&mut observer).await?;
        Ok(waits.then_some(()))
    })
    .await
}

/// Checks that an operation does not end before its commit waits. It can end after [`release_commits`].
pub async fn waits_for_standby<T: Debug>(
    admin_url: &str,
    operation: Pin<&mut impl Future<Output = T>>,
) -> Result<()> {
    tokio::select! {
        ended = operation => bail!("it did not wait for the standby: {ended:?}"),
        waits = commit_waits(admin_url) => waits,
    }
}

/// Ends the sessions whose commits wait. What they have written is visible then, and no standby has it.
pub async fn terminate_waiting(admin_url: &str) -> Result<()> {
    let terminate =
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity where wait_event = 'SyncRep'";
    execute(admin_url, terminate).await
}

/// Lets commits wait for a standby that does not exist, and makes a write that is visible all the same. Commits wait
/// until [`release_commits`].
pub async fn write_without_standby<T>(admin_url: &str, write: impl Future<Output = T>) -> Result<()> {
    hang_commits(admin_url).await?;
    let (mut write, mut waited) = (pin!(write), false);
    // Until the write itself ends: the first commit that waits may be another's.
    loop {
        tokio::select! {
            _ = &mut write => break,
            waits = commit_waits(admin_url) => waits?,
        }
        waited = true;
        terminate_waiting(admin_url).await?;
    }
    ensure!(waited, "the commit did not wait for the standby");
    Ok(())
}

/// Commits until a commit fails.
async fn commit_repeatedly(writer: &mut PgConnection) -> Result<()> {
    loop {
        // An id alone is not enough: the commit of a transaction that has logged nothing waits for no standby.
        sqlx::query("select pg_logical_emit_message(true, '', '')").execute(&mut *writer).await?;
    }
}

/// Sets which standby a commit waits for, as the administrator of a server.
pub async fn set_standby(admin_url: &str, value: &str) -> Result<()> {
    execute(admin_url, &format!("alter system set synchronous_standby_names {value}")).await?;
    execute(admin_url, "select pg_reload_conf()").await
}

async fn execute(admin_url: &str, statement: &str) -> Result<()> {
    sql::execute(admin_url, statement, DEADLINE).await
}
