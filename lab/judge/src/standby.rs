//! A synchronous standby of the judge's PostgreSQL, for one level.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use fault_proxy::{Direction::Both, Effect};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use testbed::{Postgres, commit_waits, eventually, set_standby, terminate_waiting};

use crate::{
    outbox::Event,
    stage::{STANDBY, Stage},
};

const DEADLINE: Duration = Duration::from_secs(60);
const FOLLOWS: &str = "select exists (select from pg_stat_replication where sync_state = 'quorum')";
const COMMIT_WAITS: &str = "select exists (select from pg_stat_activity where wait_event = 'SyncRep')";

#[derive(Debug)]
pub(crate) struct Standby(Postgres);

impl Standby {
    /// Starts a standby, for which every commit at the primary waits from now on.
    pub(crate) async fn start(stage: &Stage<'_>) -> Result<Self> {
        let primary = &stage.servers.postgres;
        let standby = primary.standby(stage.address(STANDBY)?.port()).await?;
        let admin = primary.admin_url("postgres");
        set_standby(&admin, &format!("= 'ANY 1 ({})'", standby.standby_name())).await?;
        eventually("the standby to be synchronous", DEADLINE, async || {
            Ok(is_true(&admin, FOLLOWS).await?.then_some(()))
        })
        .await?;
        Ok(Self(standby))
    }

    /// Commits an event that is visible at the primary, and that the standby never gets. Its commit fails.
    pub(crate) async fn commit_without(&self, stage: &mut Stage<'_>, event: &Event) -> Result<()> {
        let admin = stage.servers.postgres.admin_url("postgres");
        let mut open = stage.outbox.begin(event).await?;
        let before = stage.resets(STANDBY)?;
        stage.set(STANDBY, Effect::Cut, Both)?;
        stage.until_reset(STANDBY, before, DEADLINE).await?;
        tokio::select! {
            committed = sqlx::raw_sql("commit").execute(&mut open) => {
                committed?;
                bail!("the commit did not wait for the standby");
            }
            waits = commit_waits(&admin) => waits?,
        }
        terminate_waiting(&admin).await
    }

    /// Whether a commit at the primary waits for the standby.
    pub(crate) async fn is_waited_for(&self, stage: &Stage<'_>) -> Result<bool> {
        is_true(&stage.servers.postgres.admin_url("postgres"), COMMIT_WAITS).await
    }

    /// Kills the primary, and makes the standby the server of the judge and of the instances that start from now on.
    pub(crate) async fn take_over(&self, stage: &mut Stage<'_>) -> Result<()> {
        stage.servers.postgres.kill().await?;
        let promoted = is_true(&self.0.admin_url("postgres"), "select pg_promote(true, 60)").await?;
        ensure!(promoted, "failed to promote the standby: it took more than a minute");
        stage.use_server(&self.0);
        Ok(())
    }
}

async fn is_true(url: &str, query: &str) -> Result<bool> {
    let mut connection = PgConnection::connect(url).await?;
    let answer = sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(&mut connection).await?;
    connection.close().await?;
    Ok(answer)
}
