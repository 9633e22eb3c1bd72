//! The outbox in PostgreSQL: a lane is a row, and a relay holds a lane by its row lock.

use std::time::Duration;

use messaging::Refusal;
use sqlx::{PgPool, Postgres, Transaction};
use tokio::time::timeout;

use crate::{
    Error, claim, failed, mark,
    scan_watermark::{Scan, ScanWatermark},
    store::{ClaimResult, ClaimedEvent, OutboxTransaction, Store},
};

/// How long one statement may take, seen from here. The server's own limit is shorter; this one ends the wait for a
/// server that has gone silent.
const STATEMENT_DEADLINE: Duration = Duration::from_secs(12);

async fn within_deadline<T>(statement: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let silent = |late| Error::new("the database does not answer", late);
    timeout(STATEMENT_DEADLINE, statement).await.map_err(silent)?
}

/// The outbox in the pool's schema.
#[derive(Debug, Clone)]
pub struct PostgresStore {
    pool: PgPool,
    watermark: ScanWatermark,
}

impl PostgresStore {
    /// `full_scan` is how often each lane is read from its beginning, and not only after its watermark: the longest that
    /// an event which was committed very late has to wait.
    pub fn new(pool: PgPool, full_scan: Duration) -> Self {
        Self { pool, watermark: ScanWatermark::new(full_scan) }
    }
}

/// An open transaction that has some lanes locked.
///
/// While it is open no other relay can publish events of these lanes. If this process or its connection dies, PostgreSQL
/// rolls back and the lanes are free at once. A process that is frozen instead is cut off by
/// `idle_in_transaction_session_timeout`, and its late marks fail with its session.
#[derive(Debug)]
pub struct PostgresTransaction<'store> {
    transaction: Transaction<'static, Postgres>,
    scan: Scan<'store>,
}

impl Store for PostgresStore {
    type Transaction<'store> = PostgresTransaction<'store>;

    async fn claim_lanes(
        &mut self,
        first_lane: i16,
        max_lanes: u8,
    ) -> Result<ClaimResult<PostgresTransaction<'_>>, Error> {
        let mut scan = self.watermark.start_scan();
        let begin = async { self.pool.begin().await.map_err(failed("failed to begin a transaction")) };
        let mut transaction = within_deadline(begin).await?;
        let from = scan.from();
        let locking = claim::lock_lanes(&mut transaction, first_lane, max_lanes.into(), &from);
        let lanes = scan
            .time(within_deadline(locking), |lanes| {
                // Fewer lanes than asked for: the statement has read all of them.
                if lanes.len() < max_lanes.into() { vec![] } else { lanes.clone() }
            })
            .await?;
        if lanes.is_empty() {
            let looking = claim::any_claimable(&mut transaction, &from);
            let claimable = scan.time(within_deadline(looking), |_| vec![]).await?;
            return Ok(if claimable { ClaimResult::Busy } else { ClaimResult::Idle });
        }
        Ok(ClaimResult::Lanes(lanes, PostgresTransaction { transaction, scan }))
    }
}

impl OutboxTransaction for PostgresTransaction<'_> {
    async fn claimable(&mut self, lanes: &[i16], per_lane: i64) -> Result<Vec<ClaimedEvent>, Error> {
        let Self { transaction, scan } = self;
        let from = scan.from();
        let reading = claim::read_claimable(transaction, lanes, per_lane, &from);
        let claimed = scan.time(within_deadline(reading), |_| lanes.to_vec()).await?;
        scan.claimed(&claimed);
        Ok(claimed)
    }

    async fn mark_published(&mut self, confirmed: &[ClaimedEvent]) -> Result<(), Error> {
        self.scan.published(confirmed);
        within_deadline(mark::mark_published(&mut self.transaction, confirmed)).await
    }

    async fn mark_refused(&mut self, event: &ClaimedEvent, refusal: Refusal) -> Result<(), Error> {
        self.scan.refused();
        within_deadline(mark::mark_refused(&mut self.transaction, event, refusal)).await
    }

    async fn commit(self) -> Result<(), Error> {
        let Self { transaction, scan } = self;
        let commit = async { transaction.commit().await.map_err(failed("failed to commit the marks")) };
        within_deadline(commit).await?;
        scan.committed();
        Ok(())
    }
}
