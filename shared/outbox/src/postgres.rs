//! The outbox in PostgreSQL: the lanes are rows, and the right to them is a row lock.

use events::transport::Refusal;
#[cfg(feature = "drill")]
use faults::Sabotage;
use sqlx::{PgPool, Postgres, Transaction};

use crate::{
    Error, claim, failed, mark,
    store::{Claimed, Hold, Reach, Store},
};

/// The outbox in the pool's schema.
#[derive(Debug, Clone)]
pub struct PostgresStore {
    pool: PgPool,
}

impl PostgresStore {
    /// Connects to nothing yet.
    pub fn new(pool: PgPool) -> Self {
        Self { pool }
    }
}

/// An open transaction that has some lanes locked.
///
/// While it is open nobody else can touch these aggregates. If this process or its link dies, PostgreSQL rolls back and
/// the lanes are free at once; a process that is frozen instead is cut off by `idle_in_transaction_session_timeout`,
/// and its late marks fail with its session.
#[derive(Debug)]
pub struct LockedLanes(Transaction<'static, Postgres>);

impl Store for PostgresStore {
    type Hold<'store> = LockedLanes;

    async fn reach(&mut self, start: i16, share: u8) -> Result<Reach<LockedLanes>, Error> {
        let mut transaction = self.pool.begin().await.map_err(failed("cannot begin a transaction"))?;
        #[cfg(feature = "drill")]
        if faults::sabotaged(Sabotage::SkipLockedOnRows) {
            let due = claim::something_is_due(&mut transaction).await?;
            return Ok(if due { Reach::Lanes(vec![0], LockedLanes(transaction)) } else { Reach::Idle });
        }
        let lanes = claim::lock_lanes(&mut transaction, start, share.into()).await?;
        if lanes.is_empty() {
            let due = claim::something_is_due(&mut transaction).await?;
            return Ok(if due { Reach::Busy } else { Reach::Idle });
        }
        Ok(Reach::Lanes(lanes, LockedLanes(transaction)))
    }
}

impl Hold for LockedLanes {
    async fn due(&mut self, lanes: &[i16], per_lane: i64) -> Result<Vec<Claimed>, Error> {
        #[cfg(feature = "drill")]
        if faults::sabotaged(Sabotage::SkipLockedOnRows) {
            return crate::sabotage::read_free_rows(&mut self.0).await;
        } else if faults::sabotaged(Sabotage::CursorOverSeq) {
            return crate::sabotage::read_behind_cursor(&mut self.0, lanes).await;
        }
        claim::read_due(&mut self.0, lanes, per_lane).await
    }

    async fn published(&mut self, confirmed: &[Claimed]) -> Result<(), Error> {
        mark::published(&mut self.0, confirmed).await
    }

    async fn refused(&mut self, event: &Claimed, refusal: Refusal) -> Result<(), Error> {
        mark::refused(&mut self.0, event, refusal).await
    }

    async fn commit(self) -> Result<(), Error> {
        self.0.commit().await.map_err(failed("cannot commit what was published"))
    }
}
