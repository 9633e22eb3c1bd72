use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, PoisonError},
};

use sqlx::{PgConnection, PgPool, Postgres, pool::PoolConnection};
use tokio::time::{Instant, timeout};

use crate::{
    pool::{ACQUIRE_DEADLINE, MAX_UNTESTED_IDLE},
    read_only::is_read_only,
};

/// The connection of a worker that does one round after the other, kept out of the pool between the rounds.
///
/// A connection that comes back to a pool is asked whether it still answers, and in a pool for transactions also whether it is
/// outside of them: one or two round trips for a round that has five. Clones share the connection; while one clone uses
/// it, the others take theirs from the pool.
#[derive(Debug, Clone)]
pub struct WorkerConnection {
    pool: PgPool,
    kept: Arc<Mutex<Option<Kept>>>,
}

#[derive(Debug)]
struct Kept {
    connection: PoolConnection<Postgres>,
    since: Instant,
}

/// A connection for one round. Dropped, it goes back to the pool, which closes it if it is inside a transaction: so every
/// round that fails or is cancelled ends as if nothing had been kept.
#[derive(Debug)]
pub struct RoundConnection(PoolConnection<Postgres>);

impl WorkerConnection {
    pub fn new(pool: PgPool) -> Self {
        Self { pool, kept: Arc::default() }
    }

    fn replace(&self, kept: Option<Kept>) -> Option<Kept> {
        std::mem::replace(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner), kept)
    }

    /// The connection of the last round, or one of the pool's. One that was idle for a second is tested first, as the
    /// pool would: the server may have been restarted, or have become read-only.
    ///
    /// # Errors
    /// When no connection is free in time, or the database cannot be reached.
    pub async fn take(&self) -> Result<RoundConnection, sqlx::Error> {
        if let Some(Kept { mut connection, since }) = self.replace(None) {
            if since.elapsed() <= MAX_UNTESTED_IDLE {
                return Ok(RoundConnection(connection));
            }
            if let Ok(Ok(false)) = timeout(ACQUIRE_DEADLINE, is_read_only(&mut connection)).await {
                return Ok(RoundConnection(connection));
            }
        }
        self.pool.acquire().await.map(RoundConnection)
    }

    /// Keeps a connection for the next round. Only after a commit or a rollback was answered: a connection that is kept is
    /// not checked for an open transaction.
    pub fn keep(&self, round: RoundConnection) {
        // Another clone's connection goes back to the pool.
        drop(self.replace(Some(Kept { connection: round.0, since: Instant::now() })));
    }
}

impl Deref for RoundConnection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.0
    }
}

impl DerefMut for RoundConnection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.0
    }
}
