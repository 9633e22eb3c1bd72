use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sqlx::{PgConnection, raw_sql};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::DatabaseUrl;

/// How often the database is probed, and how long it may take to answer: what health shows is at most four seconds old.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);
const PROBE_DEADLINE: Duration = Duration::from_secs(2);

/// Of so many probes one also writes. While writes fail, each does.
const WRITE_EVERY: u32 = 10;

/// Writes a record that nothing reads, on the primary alone: while commits hang, [`obstacle`] says so. A server that refuses
/// writes (before a wraparound of transaction ids, or for lack of disk) still answers reads.
const WRITE: &str = "begin; set local synchronous_commit = local;
                     select pg_logical_emit_message(true, 'probe', ''); commit";

/// The SQLSTATE of a full disk. The probe's record still fits into the log that the server has, while no table can grow: only the
/// writes of the service notice.
const DISK_FULL: &str = "53100";

/// How long health remembers a full disk. Where no requests are sent to an instance that is not ready, it then gets some again,
/// and they show whether there is room.
const DISK_FULL_FOR: Duration = Duration::from_secs(30);

/// The age of the oldest snapshot of the database, by a function of `bootstrap.sql`: a service's login may not see it.
const OLDEST_SNAPSHOT: &str = "select oldest_snapshot_seconds()";

const COMMITS_HANG: &str = "commits wait for a synchronous standby that does not answer";

/// The commits of this login that the last probe found waiting for a synchronous standby, each by its session and its transaction.
type WaitingCommits = Vec<String>;

/// Why the server cannot be used although it answers, and whether another one may have taken over: the next probe is to reach
/// that one. While commits wait for a synchronous standby that does not answer, reads are answered and every write hangs. So
/// commits hang once a probe finds one waiting that the probe before found, too. The times in `pg_stat_activity` do not say how
/// long a commit has waited: they say when its statement began.
async fn obstacle(
    connection: &mut PgConnection,
    waiting: &mut WaitingCommits,
) -> Result<Option<(&'static str, bool)>, sqlx::Error> {
    let (read_only, wait_now): (bool, WaitingCommits) = sqlx::query_as(
        "select current_setting('transaction_read_only') = 'on', array(
             select concat(pid, '/', backend_xid) from pg_stat_activity
             where usename = current_user and wait_event = 'SyncRep'
         )",
    )
    .fetch_one(connection)
    .await?;
    let commits_hang = wait_now.iter().any(|commit| waiting.contains(commit));
    *waiting = wait_now;
    Ok(match (read_only, commits_hang) {
        (true, _) => Some(("it is read-only", true)),
        (false, true) => Some((COMMITS_HANG, false)),
        (false, false) => None,
    })
}

/// Whether the database answers, and accepts writes. Cheap to clone; all clones show the same.
#[derive(Debug, Clone)]
pub struct DatabaseHealth {
    state: Arc<Mutex<Result<(), String>>>,
    /// As the last probe that was answered has found.
    commits_hang: Arc<AtomicBool>,
    /// When a write was refused last because the disk is full, and in what words.
    disk_full: Arc<Mutex<Option<(Instant, String)>>>,
}

impl Default for DatabaseHealth {
    fn default() -> Self {
        let state = Arc::new(Mutex::new(Err("not prepared yet".into())));
        Self { state, commits_hang: Arc::default(), disk_full: Arc::default() }
    }
}

impl DatabaseHealth {
    /// A probe for `/readyz`: `Err` says why the database cannot be used.
    pub fn probe(&self) -> impl Fn() -> Result<(), String> + Send + Sync + use<> {
        let state = self.state.clone();
        move || state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Call this once the database is prepared, before [`watch`](Self::watch) has asked for the first time.
    pub fn set_prepared(&self) {
        let _ = self.replace(Ok(()));
    }

    fn replace(&self, now: Result<(), String>) -> Result<(), String> {
        std::mem::replace(&mut *self.state.lock().unwrap_or_else(PoisonError::into_inner), now)
    }

    /// Remembers an error that concerns all writes.
    pub(crate) fn note(&self, error: &sqlx::Error) {
        if let Some(refusal) = error.as_database_error().filter(|it| it.code().as_deref() == Some(DISK_FULL))
        {
            let now = (Instant::now(), refusal.message().to_owned());
            *self.disk_full.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        }
    }

    fn check_disk(&self) -> Result<(), String> {
        let full = self.disk_full.lock().unwrap_or_else(PoisonError::into_inner).clone();
        full.filter(|(at, _)| at.elapsed() < DISK_FULL_FOR).map_or(Ok(()), |(_, why)| Err(why))
    }

    /// Fails while commits are known to hang. A probe without an answer changes nothing: the commits that hang may be why.
    pub(crate) fn check_commits(&self) -> Result<(), sqlx::Error> {
        if self.commits_hang.load(Ordering::Relaxed) {
            return Err(io::Error::other(COMMITS_HANG).into());
        }
        Ok(())
    }

    /// Probes the database every two seconds, until `stop`, and logs each change once. On its own connection: with others', a
    /// rush of requests or an operator's long lists would look like a lost database.
    pub async fn watch(self, url: DatabaseUrl, stop: CancellationToken) {
        let url = url.with(|options| options.application_name("health"));
        let watching = async {
            let (mut kept, mut waiting, mut until_write) = (None, WaitingCommits::new(), 0);
            loop {
                let asking = async {
                    let mut connection = match kept.take() {
                        Some(connection) => connection,
                        None => url.connect().await?,
                    };
                    let obstacle = obstacle(&mut connection, &mut waiting).await?;
                    until_write = match until_write {
                        0 if obstacle.is_none() => {
                            raw_sql(WRITE).execute(&mut connection).await?;
                            let seconds =
                                sqlx::query_scalar(OLDEST_SNAPSHOT).fetch_one(&mut connection).await;
                            metrics::gauge!("database_oldest_snapshot_seconds")
                                .set(seconds.unwrap_or(f64::NAN));
                            WRITE_EVERY - 1
                        }
                        probes => probes.saturating_sub(1),
                    };
                    kept = Some(connection).filter(|_| !obstacle.is_some_and(|(_, is_replaced)| is_replaced));
                    Ok::<_, sqlx::Error>(obstacle.map(|(reason, _)| reason))
                };
                let asked = timeout(PROBE_DEADLINE, asking).await;
                let hang = match &asked {
                    Ok(Ok(obstacle)) => {
                        let hang = *obstacle == Some(COMMITS_HANG);
                        self.commits_hang.store(hang, Ordering::Relaxed);
                        f64::from(u8::from(hang))
                    }
                    _ => {
                        metrics::gauge!("database_oldest_snapshot_seconds").set(f64::NAN);
                        f64::NAN
                    }
                };
                metrics::gauge!("database_commits_hang").set(hang);
                let disk = self.check_disk();
                // While commits hang the database answers: the gauge above has its own alert.
                let available = disk.is_ok() && matches!(asked, Ok(Ok(None | Some(COMMITS_HANG))));
                metrics::gauge!("database_available").set(f64::from(u8::from(available)));
                let now = match asked {
                    Ok(Ok(None)) => disk,
                    Ok(Ok(Some(reason))) => Err(reason.to_owned()),
                    Ok(Err(error)) => Err(error.to_string()),
                    Err(_) => Err("no answer within 2 s".to_owned()),
                };
                match (self.replace(now.clone()), now) {
                    (Ok(()), Err(reason)) => tracing::warn!(reason, "the database is unavailable"),
                    (Err(_), Ok(())) => tracing::info!("the database answers again"),
                    _ => {}
                }
                sleep(PROBE_INTERVAL).await;
            }
        };
        stop.run_until_cancelled(watching).await;
    }
}

/// How often figures are counted, and how long that may take: what `/metrics` shows is at most five seconds old, or NaN.
const COUNT_INTERVAL: Duration = Duration::from_secs(3);
const COUNT_DEADLINE: Duration = Duration::from_secs(2);

/// Counts figures for `/metrics` and gives them to `show`, which sets gauges, again and again until `stop`. When the database
/// does not answer they are NaN: unknown is never shown as zero.
pub async fn observe<const FIGURES: usize, Count: Future<Output = Result<[f64; FIGURES], sqlx::Error>>>(
    count: impl Fn() -> Count,
    show: impl Fn([f64; FIGURES]),
    stop: CancellationToken,
) {
    let observing = async {
        loop {
            let counted = timeout(COUNT_DEADLINE, count()).await.ok().and_then(Result::ok);
            show(counted.unwrap_or([f64::NAN; FIGURES]));
            sleep(COUNT_INTERVAL).await;
        }
    };
    stop.run_until_cancelled(observing).await;
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection as _, PgConnection};
    use testbed::{Postgres, hang_commits, release_commits, terminate_waiting, waits_for_standby};

    use super::*;
    use crate::{Pool, PoolKind};

    /// The probe's own record fits into the log when no table can grow.
    #[tokio::test]
    async fn a_write_that_is_refused_for_lack_of_disk_makes_the_database_unavailable() -> anyhow::Result<()> {
        let database = testbed::database().await?;
        let health = DatabaseHealth::default();
        let url = database.url("orders").parse().map_err(anyhow::Error::msg)?;
        let pool = Pool::new(&url, "test", 1, PoolKind::Statements).with_health(health.clone());
        let raise =
            |code: &str| format!("do $$begin raise exception 'no space' using errcode = '{code}'; end$$");
        for (code, expected) in [("23505", Ok(())), ("53100", Err("no space".to_owned()))] {
            let refused = sqlx::query(sqlx::AssertSqlSafe(raise(code))).execute(&pool).await;
            assert!(refused.is_err());
            assert_eq!(health.check_disk(), expected, "{code}");
        }
        Ok(())
    }

    /// On a busy primary each probe finds commits that wait for milliseconds, and the statement of some began seconds before:
    /// neither means that commits hang.
    #[tokio::test]
    async fn commits_hang_only_when_the_same_one_waits_at_two_probes() -> anyhow::Result<()> {
        let server = Postgres::private().await?;
        let admin = server.admin_url("postgres");
        hang_commits(&admin).await?;
        let mut connection = PgConnection::connect(&admin).await?;
        let mut waiting = WaitingCommits::new();
        for _ in 0..2 {
            let mut writer = PgConnection::connect(&admin).await?;
            let write = sqlx::query("select pg_logical_emit_message(true, 'test', ''), pg_sleep(2.5)")
                .execute(&mut writer);
            let mut write = std::pin::pin!(write);
            waits_for_standby(&admin, write.as_mut()).await?;
            assert_eq!(obstacle(&mut connection, &mut waiting).await?, None, "another commit than before");
            terminate_waiting(&admin).await?;
            assert!(write.await.is_err(), "the session was terminated");
        }
        let mut writer = PgConnection::connect(&admin).await?;
        let mut write = std::pin::pin!(
            sqlx::query("select pg_logical_emit_message(true, 'test', '')").execute(&mut writer)
        );
        waits_for_standby(&admin, write.as_mut()).await?;
        assert_eq!(obstacle(&mut connection, &mut waiting).await?, None);
        assert_eq!(obstacle(&mut connection, &mut waiting).await?, Some((COMMITS_HANG, false)));
        release_commits(&admin).await?;
        write.await?;
        assert_eq!(obstacle(&mut connection, &mut waiting).await?, None);
        Ok(())
    }
}
