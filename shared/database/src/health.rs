use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sqlx::PgPool;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::read_only::is_read_only;

/// How often the database is asked, and how long it may take to answer: what health shows is at most four seconds old.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);
const PROBE_DEADLINE: Duration = Duration::from_secs(2);

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

    /// Asks the database every two seconds, until `stop`. Logs each change once; `user` names the pool's user there.
    pub async fn watch(self, user: &'static str, pool: PgPool, stop: CancellationToken) {
        let watching = async {
            loop {
                let asking = async { is_read_only(&mut *pool.acquire().await?).await };
                let now = match timeout(PROBE_DEADLINE, asking).await {
                    Ok(Ok(false)) => Ok(()),
                    Ok(Ok(true)) => Err("it is read-only".to_owned()),
                    Ok(Err(error)) => Err(error.to_string()),
                    Err(_) => Err("no answer within 2 s".to_owned()),
                };
                match (self.replace(now.clone()), now) {
                    (Ok(()), Err(reason)) => tracing::warn!(user, reason, "the database is unavailable"),
                    (Err(_), Ok(())) => tracing::info!(user, "the database answers again"),
                    _ => {}
                }
                sleep(PROBE_INTERVAL).await;
            }
        };
        stop.run_until_cancelled(watching).await;
    }
}
