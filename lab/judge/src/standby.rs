//! Commits that wait for a synchronous standby: the log shows them, and their events are not visible yet.

use std::time::Duration;

use anyhow::{Result, ensure};
use fault_proxy::{Direction::Both, Effect};
use sqlx::PgConnection;
use testbed::{Postgres, eventually, hang_commits, release_commits, set_standby, sql};

use crate::{
    outbox::Event,
    stage::{STANDBY, Stage},
};

const DEADLINE: Duration = Duration::from_secs(60);
/// How long a commit waits: a relay that reads the log has read it by then.
const COMMIT_WAITS: Duration = Duration::from_secs(3);
const FOLLOWS: &str = "exists (select from pg_stat_replication where sync_state = 'quorum')";

/// Commits an event that the log shows before it is visible. With a usual commit that lasts for a moment, which a relay meets
/// by chance; here it meets it for certain.
pub(crate) async fn commit_slowly(stage: &mut Stage<'_>, event: Event) -> Result<()> {
    let admin = stage.servers.postgres.admin_url("postgres");
    let open = stage.outbox.begin(&event).await?;
    hang_commits(&admin).await?;
    let (committed, ()) = commit_until(stage, open, async |_| release_commits(&admin).await).await?;
    committed?;
    stage.outbox.record(vec![event]).await
}

/// Commits an open transaction, whose commit waits for a standby until `end` has ended the wait of its session. Returns how the
/// commit ended, and what `end` returns.
async fn commit_until<T>(
    stage: &mut Stage<'_>,
    mut open: PgConnection,
    end: impl AsyncFnOnce(i32) -> Result<T>,
) -> Result<(sqlx::Result<()>, T)> {
    let admin = stage.servers.postgres.admin_url("postgres");
    let session: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut open).await?;
    // Other sessions' commits may wait, too.
    let waits =
        format!("exists (select from pg_stat_activity where wait_event = 'SyncRep' and pid = {session})");
    let commit = async { anyhow::Ok(sqlx::raw_sql("commit").execute(&mut open).await.map(drop)) };
    let wait = async {
        eventually("the commit to wait for the standby", DEADLINE, async || {
            Ok(is_true(&admin, &waits).await?.then_some(()))
        })
        .await?;
        stage.pass(COMMIT_WAITS).await?;
        end(session).await
    };
    tokio::try_join!(commit, wait)
}

/// A synchronous standby of the judge's PostgreSQL, for one level.
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

    /// Commits an event that is visible at the primary, and that the standby never gets. Its commit fails. Returns when it became
    /// visible, as the server's clock shows it.
    pub(crate) async fn commit_without(&self, stage: &mut Stage<'_>, event: &Event) -> Result<String> {
        let admin = stage.servers.postgres.admin_url("postgres");
        let open = stage.outbox.begin(event).await?;
        let before = stage.resets(STANDBY)?;
        stage.set(STANDBY, Effect::Cut, Both)?;
        stage.until_reset(STANDBY, before, DEADLINE).await?;
        let end = async |session: i32| {
            let now = sql::read(&admin, "select clock_timestamp()::text", DEADLINE).await?;
            let terminate = format!("select pg_terminate_backend({session}, 10000)");
            sql::execute(&admin, &terminate, DEADLINE).await?;
            Ok(now)
        };
        let (committed, visible) = commit_until(stage, open, end).await?;
        ensure!(committed.is_err(), "the commit did not wait for the standby");
        Ok(visible)
    }

    /// Whether a commit of the relay waits for the standby that it has begun since. An older one waits for something else.
    pub(crate) async fn relay_waits(&self, stage: &Stage<'_>, since: &str) -> Result<bool> {
        let waits = format!(
            "exists (select from pg_stat_activity where wait_event = 'SyncRep'
                and datname = '{}' and query_start > '{since}')",
            stage.database()
        );
        is_true(&stage.servers.postgres.admin_url("postgres"), &waits).await
    }

    /// Kills the primary, and makes the standby the server of the judge and of the instances that start from now on.
    pub(crate) async fn take_over(self, stage: &mut Stage<'_>) -> Result<()> {
        stage.servers.postgres.kill().await?;
        let promoted = is_true(&self.0.admin_url("postgres"), "pg_promote(true, 50)").await?;
        ensure!(promoted, "failed to promote the standby: it took more than 50 s");
        stage.use_server(self.0);
        Ok(())
    }
}

async fn is_true(url: &str, condition: &str) -> Result<bool> {
    Ok(sql::read(url, &format!("select ({condition})::text"), DEADLINE).await? == "true")
}
