//! The outbox in PostgreSQL: a lane is a row, and a relay holds a lane by its row lock.

use std::time::Duration;

use database::{Pool, Session};
use messaging::Refusal;
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
#[derive(Debug)]
pub struct PostgresStore {
    pool: Pool,
    watermark: ScanWatermark,
}

impl PostgresStore {
    /// `full_scan` is how often each lane is read from its beginning, and not only after its watermark: the longest that
    /// an event which was committed very late has to wait.
    pub fn new(pool: Pool, full_scan: Duration) -> Self {
        Self { pool, watermark: ScanWatermark::new(full_scan) }
    }
}

/// An open transaction that has some lanes locked.
///
/// While it is open no other relay can publish events of these lanes. If this process or its connection dies, PostgreSQL
/// rolls back and the lanes are free at once. A process that is frozen instead is cut off by
/// `idle_in_transaction_session_timeout`, and its late marks fail with its session.
///
/// If it is dropped before its commit, its connection is closed: the lanes are free then too.
#[derive(Debug)]
pub struct PostgresTransaction<'store> {
    session: Session,
    scan: Scan<'store>,
}

impl Store for PostgresStore {
    type Transaction<'store> = PostgresTransaction<'store>;

    async fn claim_lanes(
        &mut self,
        first_lane: i16,
        max_lanes: u8,
    ) -> Result<ClaimResult<PostgresTransaction<'_>>, Error> {
        let beginning = async { self.pool.begin().await.map_err(failed("failed to begin a transaction")) };
        let mut session = within_deadline(beginning).await?;
        let mut scan = self.watermark.start_scan();
        let from = scan.from();
        let locking = claim::lock_lanes(&mut session, first_lane, max_lanes.into(), &from);
        let claimable = scan.time(within_deadline(locking), |_| vec![]).await?;
        let (locked, others): (Vec<_>, Vec<_>) = claimable.into_iter().partition(|lane| lane.locked);
        if locked.is_empty() {
            let ending = async { session.rollback().await.map_err(failed("failed to end a scan")) };
            within_deadline(ending).await?;
            return Ok(if others.is_empty() { ClaimResult::Idle } else { ClaimResult::Busy });
        }
        let lanes = locked.into_iter().map(|locked| locked.lane).collect();
        let transaction = PostgresTransaction { session, scan };
        Ok(ClaimResult::Lanes { lanes, others: !others.is_empty(), transaction })
    }
}

impl OutboxTransaction for PostgresTransaction<'_> {
    async fn claimable(&mut self, lanes: &[i16], per_lane: i64) -> Result<Vec<ClaimedEvent>, Error> {
        let Self { session, scan } = self;
        let from = scan.from();
        let reading = claim::read_claimable(session, lanes, per_lane, &from);
        let claimed = scan.time(within_deadline(reading), |_| lanes.to_vec()).await?;
        scan.claimed(&claimed);
        Ok(claimed)
    }

    async fn try_write(&mut self, event: &ClaimedEvent) -> Result<(), Error> {
        within_deadline(mark::try_write(&mut self.session, event.seq)).await
    }

    async fn mark_published(&mut self, confirmed: &[ClaimedEvent]) -> Result<(), Error> {
        self.scan.published(confirmed);
        within_deadline(mark::mark_published(&mut self.session, confirmed)).await
    }

    async fn mark_refused(&mut self, refused: &[(ClaimedEvent, Refusal)]) -> Result<(), Error> {
        self.scan.refused();
        within_deadline(mark::mark_refused(&mut self.session, refused)).await
    }

    async fn commit(self) -> Result<(), Error> {
        let Self { session, scan } = self;
        within_deadline(async { session.commit().await.map_err(failed("failed to commit the marks")) })
            .await?;
        scan.committed();
        Ok(())
    }
}
