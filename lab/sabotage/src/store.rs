//! Two well-known ways to claim events that lose them, or their order, and a relay that publishes what it cannot mark.

use std::sync::atomic::{AtomicI64, Ordering};

use database::Pool;
use messaging::Refusal;
use outbox::{
    Error, PostgresStore, PostgresTransaction, RelayOptions,
    store::{ClaimResult, ClaimedEvent, OutboxTransaction, Store},
};

use crate::{
    Sabotage,
    row_locks::{OncePublished, RowLockStore, RowLockTransaction},
};

/// The product's store, with a part of it left out, or one that claims events in another way.
#[expect(clippy::large_enum_variant, reason = "there is one for each relay")]
pub enum LabStore {
    Postgres(PostgresStore, Option<Sabotage>),
    RowLocks(RowLockStore),
}

impl LabStore {
    pub fn new(pool: Pool, options: &RelayOptions, sabotage: Option<Sabotage>) -> Self {
        match sabotage {
            Some(Sabotage::SkipLockedOnRows) => Self::RowLocks(RowLockStore::new(pool, OncePublished::Mark)),
            _ => Self::Postgres(PostgresStore::new(pool, options.full_scan), sabotage),
        }
    }
}

#[expect(clippy::large_enum_variant, reason = "there is one for each relay")]
pub enum LabTransaction<'store> {
    Postgres(PostgresTransaction<'store>, Option<Sabotage>),
    RowLocks(RowLockTransaction),
}

/// The last `seq` that this process has read: what a polling publisher with a cursor would keep.
static CURSOR: AtomicI64 = AtomicI64::new(0);

impl Store for LabStore {
    type Transaction<'store> = LabTransaction<'store>;

    async fn claim_lanes(
        &mut self,
        first_lane: i16,
        max_lanes: u8,
    ) -> Result<ClaimResult<LabTransaction<'_>>, Error> {
        match self {
            Self::Postgres(store, sabotage) => {
                let claimed = store.claim_lanes(first_lane, max_lanes).await?;
                Ok(wrap(claimed, |transaction| LabTransaction::Postgres(transaction, *sabotage)))
            }
            Self::RowLocks(store) => {
                Ok(wrap(store.claim_lanes(first_lane, max_lanes).await?, LabTransaction::RowLocks))
            }
        }
    }
}

fn wrap<T, U>(result: ClaimResult<T>, wrap: impl FnOnce(T) -> U) -> ClaimResult<U> {
    match result {
        ClaimResult::Lanes { lanes, others, transaction } => {
            ClaimResult::Lanes { lanes, others, transaction: wrap(transaction) }
        }
        ClaimResult::Busy => ClaimResult::Busy,
        ClaimResult::Idle => ClaimResult::Idle,
    }
}

impl OutboxTransaction for LabTransaction<'_> {
    async fn claimable(&mut self, lanes: &[i16], per_lane: i64) -> Result<Vec<ClaimedEvent>, Error> {
        match self {
            Self::Postgres(transaction, sabotage) => {
                let mut claimed = transaction.claimable(lanes, per_lane).await?;
                if *sabotage == Some(Sabotage::CursorOverSeq) {
                    // Sequence numbers are drawn before the commit, so one that commits late is behind the cursor for good.
                    let cursor = CURSOR.load(Ordering::SeqCst);
                    claimed.retain(|event| event.seq > cursor);
                    CURSOR.fetch_max(claimed.last().map_or(0, |event| event.seq), Ordering::SeqCst);
                }
                Ok(claimed)
            }
            Self::RowLocks(transaction) => transaction.claimable(lanes, per_lane).await,
        }
    }

    async fn try_write(&mut self, event: &ClaimedEvent) -> Result<(), Error> {
        match self {
            Self::Postgres(_, Some(Sabotage::FailedMarksIgnored)) => Ok(()),
            Self::Postgres(transaction, _) => transaction.try_write(event).await,
            Self::RowLocks(transaction) => transaction.try_write(event).await,
        }
    }

    async fn mark_published(&mut self, confirmed: &[ClaimedEvent]) -> Result<(), Error> {
        match self {
            Self::Postgres(transaction, _) => transaction.mark_published(confirmed).await,
            Self::RowLocks(transaction) => transaction.mark_published(confirmed).await,
        }
    }

    async fn mark_refused(&mut self, refused: &[(ClaimedEvent, Refusal)]) -> Result<(), Error> {
        match self {
            Self::Postgres(transaction, _) => transaction.mark_refused(refused).await,
            Self::RowLocks(transaction) => transaction.mark_refused(refused).await,
        }
    }

    async fn commit(self) -> Result<(), Error> {
        match self {
            Self::Postgres(transaction, _) => transaction.commit().await,
            Self::RowLocks(transaction) => transaction.commit().await,
        }
    }
}
