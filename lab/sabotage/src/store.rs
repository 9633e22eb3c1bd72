//! Two well-known ways to claim events that lose them, or their order, and a relay that publishes what it cannot mark.

use std::sync::atomic::{AtomicI64, Ordering};

use database::Pool;
use messaging::Refusal;
use outbox::{
    Claim, ClaimedEvent, Error, OutboxTransaction, PostgresStore, PostgresTransaction, RelayOptions, Store,
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

pub enum LabTransaction<'store> {
    Postgres(PostgresTransaction<'store>, Option<Sabotage>),
    RowLocks(RowLockTransaction),
}

/// The last `seq` that this process has read: what a polling publisher with a cursor would keep.
static CURSOR: AtomicI64 = AtomicI64::new(0);

impl Store for LabStore {
    type Transaction<'store> = LabTransaction<'store>;

    async fn claim(&mut self, lanes: u8, batch: u16) -> Result<Claim<LabTransaction<'_>>, Error> {
        let (store, sabotage) = match self {
            Self::Postgres(store, sabotage) => (store, *sabotage),
            Self::RowLocks(store) => {
                return Ok(wrap(store.claim(lanes, batch).await?, LabTransaction::RowLocks));
            }
        };
        let claimed = store.claim(lanes, batch).await?;
        let mut claimed = wrap(claimed, |transaction| LabTransaction::Postgres(transaction, sabotage));
        if let Claim::Events { events, .. } = &mut claimed
            && sabotage == Some(Sabotage::CursorOverSeq)
        {
            // Sequence numbers are drawn before the commit, so one that commits late is behind the cursor for good.
            let cursor = CURSOR.load(Ordering::SeqCst);
            events.retain(|event| event.seq > cursor);
            CURSOR.fetch_max(events.last().map_or(0, |event| event.seq), Ordering::SeqCst);
            if events.is_empty() {
                return Ok(Claim::Busy);
            }
        }
        Ok(claimed)
    }
}

fn wrap<T, U>(claim: Claim<T>, wrap: impl FnOnce(T) -> U) -> Claim<U> {
    match claim {
        Claim::Events { events, more, transaction } => {
            Claim::Events { events, more, transaction: wrap(transaction) }
        }
        Claim::Busy => Claim::Busy,
        Claim::Idle => Claim::Idle,
    }
}

impl OutboxTransaction for LabTransaction<'_> {
    async fn try_write(&mut self, event: &ClaimedEvent) -> Result<(), Error> {
        match self {
            Self::Postgres(_, Some(Sabotage::FailedMarksIgnored)) => Ok(()),
            Self::Postgres(transaction, _) => transaction.try_write(event).await,
            Self::RowLocks(transaction) => transaction.try_write(event).await,
        }
    }

    async fn mark_refused(&mut self, refused: &[(ClaimedEvent, Refusal)]) -> Result<(), Error> {
        match self {
            Self::Postgres(transaction, _) => transaction.mark_refused(refused).await,
            Self::RowLocks(transaction) => transaction.mark_refused(refused).await,
        }
    }

    async fn commit(self, confirmed: &[ClaimedEvent]) -> Result<(), Error> {
        match self {
            Self::Postgres(transaction, _) => transaction.commit(confirmed).await,
            Self::RowLocks(transaction) => transaction.commit(confirmed).await,
        }
    }
}
