use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sqlx::PgConnection;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{DatabaseUrl, Pool, PoolKind, pool::is_read_only};

/// How often the database is asked, and how long it may take to answer: what health shows is at most four seconds old.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);
const PROBE_DEADLINE: Duration = Duration::from_secs(2);

/// One is enough while the database answers. A probe without an answer keeps its connection for some seconds.
const CONNECTIONS: u32 = 4;

/// Whether a commit of this login has waited for a synchronous standby for more than three seconds. Reads are answered all the
/// while, and every write hangs.
async fn commits_hang(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(
        "select exists (
             select from pg_stat_activity
             where usename = current_user and wait_event = 'SyncRep'
               and state_change < clock_timestamp() - interval '3 seconds'
         )",
    )
    .fetch_one(connection)
    .await
}

/// Whether the database answers, and accepts writes. Cheap to clone; all clones show the same.
#[derive(Clone)]
pub struct DatabaseHealth(Arc<Mutex<Result<(), String>>>);

impl Default for DatabaseHealth {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Err("not prepared yet".into()))))
    }
}

impl DatabaseHealth {
    /// A probe for `/readyz`: `Err` says why the database cannot be used.
    pub fn probe(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let Self(state) = self.clone();
        move || state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Call this once the database is prepared, before [`watch`](Self::watch) has asked for the first time.
    pub fn set_prepared(&self) {
        let _ = self.replace(Ok(()));
    }

    fn replace(&self, now: Result<(), String>) -> Result<(), String> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), now)
    }

    /// Asks the database every two seconds, until `stop`, and logs each change once. On its own connection: with others', a
    /// rush of requests or an operator's long lists would look like a lost database.
    pub async fn watch(self, url: DatabaseUrl, stop: CancellationToken) {
        let pool = Pool::new(&url, "health", CONNECTIONS, PoolKind::Statements);
        let watching = async {
            loop {
                let asking = async {
                    let mut session = pool.acquire().await?;
                    let obstacle = if is_read_only(&mut session).await? {
                        // The next probe is to reach the server that took over, if there is one.
                        return Ok(Some("it is read-only"));
                    } else if commits_hang(&mut session).await? {
                        Some("commits wait for a synchronous standby that does not answer")
                    } else {
                        None
                    };
                    session.finish();
                    Ok::<_, sqlx::Error>(obstacle)
                };
                let now = match timeout(PROBE_DEADLINE, asking).await {
                    Ok(Ok(None)) => Ok(()),
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
