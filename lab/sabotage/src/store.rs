//! Two well-known ways to claim events that lose them, or their order.

use std::sync::atomic::{AtomicI64, Ordering};

use messaging::{Outgoing, Refusal};
use outbox::{
    Error, PostgresStore, PostgresTransaction, RelayOptions,
    store::{ClaimResult, ClaimedEvent, OutboxTransaction, Store},
};
use sqlx::{PgPool, Postgres, Row, Transaction, postgres::PgRow};

use crate::Sabotage;

/// The product's store, or one that claims events in another way.
pub enum LabStore {
    Whole(PostgresStore),
    Cursor(PostgresStore),
    RowLocks(PgPool),
}

impl LabStore {
    pub fn new(pool: PgPool, options: &RelayOptions, sabotage: Option<Sabotage>) -> Self {
        match sabotage {
            Some(Sabotage::CursorOverSeq) => Self::Cursor(PostgresStore::new(pool, options.full_scan)),
            Some(Sabotage::SkipLockedOnRows) => Self::RowLocks(pool),
            _ => Self::Whole(PostgresStore::new(pool, options.full_scan)),
        }
    }
}

pub enum LabTransaction<'store> {
    Whole(PostgresTransaction<'store>),
    Cursor(PostgresTransaction<'store>),
    RowLocks(Transaction<'static, Postgres>),
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
            Self::Whole(store) => {
                Ok(wrap(store.claim_lanes(first_lane, max_lanes).await?, LabTransaction::Whole))
            }
            Self::Cursor(store) => {
                Ok(wrap(store.claim_lanes(first_lane, max_lanes).await?, LabTransaction::Cursor))
            }
            Self::RowLocks(pool) => claim_rows(pool).await,
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

/// Locks no lane: [`read_free_rows`] locks the events themselves.
async fn claim_rows(pool: &PgPool) -> Result<ClaimResult<LabTransaction<'static>>, Error> {
    let failed = |error| Error::new("failed to scan the outbox", Box::new(error));
    let mut transaction = pool.begin().await.map_err(failed)?;
    let pending: bool = sqlx::query_scalar(
        "select exists (select from outbox where published_at is null and parked_at is null
                                             and available_at <= clock_timestamp())",
    )
    .fetch_one(&mut *transaction)
    .await
    .map_err(failed)?;
    Ok(if pending {
        // Rows that another relay holds cannot be told from none.
        ClaimResult::Lanes {
            lanes: vec![0],
            others: true,
            transaction: LabTransaction::RowLocks(transaction),
        }
    } else {
        ClaimResult::Idle
    })
}

impl OutboxTransaction for LabTransaction<'_> {
    async fn claimable(&mut self, lanes: &[i16], per_lane: i64) -> Result<Vec<ClaimedEvent>, Error> {
        match self {
            Self::Whole(transaction) => transaction.claimable(lanes, per_lane).await,
            Self::Cursor(transaction) => {
                // Sequence numbers are drawn before the commit, so one that commits late is behind the cursor for good.
                let mut claimed = transaction.claimable(lanes, per_lane).await?;
                let cursor = CURSOR.load(Ordering::SeqCst);
                claimed.retain(|event| event.seq > cursor);
                CURSOR.fetch_max(claimed.last().map_or(0, |event| event.seq), Ordering::SeqCst);
                Ok(claimed)
            }
            Self::RowLocks(transaction) => read_free_rows(transaction).await,
        }
    }

    async fn mark_published(&mut self, confirmed: &[ClaimedEvent]) -> Result<(), Error> {
        match self {
            Self::Whole(transaction) | Self::Cursor(transaction) => {
                transaction.mark_published(confirmed).await
            }
            Self::RowLocks(transaction) => outbox::mark_published(transaction, confirmed).await,
        }
    }

    async fn mark_refused(&mut self, event: &ClaimedEvent, refusal: Refusal) -> Result<(), Error> {
        match self {
            Self::Whole(transaction) | Self::Cursor(transaction) => {
                transaction.mark_refused(event, refusal).await
            }
            Self::RowLocks(transaction) => outbox::mark_refused(transaction, event, refusal).await,
        }
    }

    async fn commit(self) -> Result<(), Error> {
        match self {
            Self::Whole(transaction) | Self::Cursor(transaction) => transaction.commit().await,
            Self::RowLocks(transaction) => transaction
                .commit()
                .await
                .map_err(|error| Error::new("failed to commit the marks", Box::new(error))),
        }
    }
}

/// `skip locked` on the events themselves: while one relay holds an order's first event, another takes its second.
async fn read_free_rows(
    transaction: &mut Transaction<'static, Postgres>,
) -> Result<Vec<ClaimedEvent>, Error> {
    let failed = |error| Error::new("failed to read the outbox", Box::new(error));
    let rows = sqlx::query(
        "select seq, lane, aggregate_id, event_id, event_type, payload::text, headers ->> 'traceparent'
         from outbox where published_at is null and parked_at is null and available_at <= clock_timestamp()
         order by seq limit 500 for update skip locked",
    )
    .fetch_all(&mut **transaction)
    .await
    .map_err(failed)?;
    let claimed = |row: &PgRow| {
        Ok(ClaimedEvent {
            seq: row.try_get(0)?,
            lane: row.try_get(1)?,
            aggregate_id: row.try_get(2)?,
            message: Outgoing {
                id: row.try_get(3)?,
                event_type: row.try_get(4)?,
                body: row.try_get::<String, _>(5)?.into_bytes(),
                traceparent: row.try_get(6)?,
            },
        })
    };
    rows.iter().map(claimed).collect::<Result<_, _>>().map_err(failed)
}
