//! An outbox whose relay locks the events themselves, `for update skip locked`, as most relays do.
//!
//! While one relay holds an order's first event, another takes its second one, and may publish it first.

use database::{Pool, Session};
use messaging::{Outgoing, Refusal};
use outbox::{
    Error,
    store::{ClaimResult, ClaimedEvent, OutboxTransaction, Store},
};
use sqlx::{Row, postgres::PgRow};
use time::OffsetDateTime;

/// What happens to a row when its event is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OncePublished {
    Mark,
    Delete,
}

pub struct RowLockStore {
    pool: Pool,
    once_published: OncePublished,
}

pub struct RowLockTransaction {
    transaction: Session,
    once_published: OncePublished,
}

impl RowLockStore {
    pub fn new(pool: Pool, once_published: OncePublished) -> Self {
        Self { pool, once_published }
    }
}

fn failed(what: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |source| Error::new(what, source)
}

impl Store for RowLockStore {
    type Transaction<'store> = RowLockTransaction;

    /// Locks no lane: [`claimable`](OutboxTransaction::claimable) locks the events.
    async fn claim_lanes(&mut self, _: i16, _: u8) -> Result<ClaimResult<RowLockTransaction>, Error> {
        let once_published = self.once_published;
        let mut transaction = self.pool.begin().await.map_err(failed("failed to scan the outbox"))?;
        let pending: bool = sqlx::query_scalar(
            "select exists (select from outbox where published_at is null and parked_at is null
                                                 and available_at <= clock_timestamp())",
        )
        .fetch_one(&mut *transaction)
        .await
        .map_err(failed("failed to scan the outbox"))?;
        if !pending {
            transaction.rollback().await.map_err(failed("failed to scan the outbox"))?;
            return Ok(ClaimResult::Idle);
        }
        // Rows that another relay holds cannot be told from none.
        let transaction = RowLockTransaction { transaction, once_published };
        Ok(ClaimResult::Lanes { lanes: vec![0], others: true, transaction })
    }
}

impl OutboxTransaction for RowLockTransaction {
    async fn claimable(&mut self, _: &[i16], _: i64) -> Result<Vec<ClaimedEvent>, Error> {
        let rows = sqlx::query(
            "select seq, lane, aggregate_id, event_id, event_type, payload::text, headers ->> 'traceparent', created_at,
                 attempts > 0
             from outbox where published_at is null and parked_at is null and available_at <= clock_timestamp()
             order by seq limit 500 for update skip locked",
        )
        .fetch_all(&mut *self.transaction)
        .await
        .map_err(failed("failed to read the outbox"))?;
        rows.iter().map(claimed).collect::<Result<_, _>>().map_err(failed("failed to read the outbox"))
    }

    async fn try_write(&mut self, event: &ClaimedEvent) -> Result<(), Error> {
        outbox::try_write(&mut self.transaction, event.seq).await
    }

    async fn mark_published(&mut self, confirmed: &[ClaimedEvent]) -> Result<(), Error> {
        if self.once_published == OncePublished::Mark {
            return outbox::mark_published(&mut self.transaction, confirmed).await;
        }
        let seqs: Vec<_> = confirmed.iter().map(|event| event.seq).collect();
        sqlx::query("delete from outbox where seq = any($1)")
            .bind(seqs)
            .execute(&mut *self.transaction)
            .await
            .map_err(failed("failed to delete what was published"))?;
        Ok(())
    }

    async fn mark_refused(&mut self, refused: &[(ClaimedEvent, Refusal)]) -> Result<(), Error> {
        outbox::mark_refused(&mut self.transaction, refused).await
    }

    async fn commit(self) -> Result<(), Error> {
        self.transaction.commit().await.map_err(failed("failed to commit the marks"))
    }
}

fn claimed(row: &PgRow) -> Result<ClaimedEvent, sqlx::Error> {
    Ok(ClaimedEvent {
        seq: row.try_get(0)?,
        lane: row.try_get(1)?,
        aggregate_id: row.try_get(2)?,
        created_at: row.try_get::<OffsetDateTime, _>(7)?.into(),
        refused_before: row.try_get(8)?,
        message: Outgoing {
            id: row.try_get(3)?,
            event_type: row.try_get(4)?,
            body: row.try_get::<String, _>(5)?.into_bytes(),
            traceparent: row.try_get(6)?,
        },
    })
}
