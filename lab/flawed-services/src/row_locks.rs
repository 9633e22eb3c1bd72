//! An outbox whose relay locks the events themselves, `for update skip locked`, as most relays do.
//!
//! While one relay holds an order's first event, another takes its second one, and may publish it first.

use database::{Pool, Session};
use messaging::{Claim, ClaimedEvent, Error, OutboxTransaction, Refusal, Store};

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

    /// Locks no lane, but the events.
    async fn claim(&mut self, _: u8, batch: u16) -> Result<Claim<RowLockTransaction>, Error> {
        const FAILURE: &str = "failed to read the outbox";
        let once_published = self.once_published;
        let mut transaction = self.pool.begin().await.map_err(failed(FAILURE))?;
        let rows = sqlx::query(
            "select seq, lane, aggregate_id, event_id, event_type, payload::text, headers ->> 'traceparent' as traceparent,
                 extract(epoch from created_at)::float8 as created_at, attempts > 0 as refused_before
             from outbox where published_at is null and parked_at is null and available_at <= clock_timestamp()
             order by seq limit $1 for update skip locked",
        )
        .bind(i32::from(batch))
        .fetch_all(&mut *transaction)
        .await
        .map_err(failed(FAILURE))?;
        let events = rows.iter().filter_map(|row| outbox::claimed_event(row).transpose());
        let events: Vec<_> = events.collect::<Result<_, _>>().map_err(failed(FAILURE))?;
        if events.is_empty() {
            // Rows that another relay holds cannot be told from none.
            transaction.rollback().await.map_err(failed(FAILURE))?;
            return Ok(Claim::Idle);
        }
        Ok(Claim::Events {
            events,
            more: true,
            transaction: RowLockTransaction { transaction, once_published },
        })
    }
}

impl OutboxTransaction for RowLockTransaction {
    async fn try_write(&mut self, events: &[ClaimedEvent]) -> Result<(), Error> {
        outbox::try_write(&mut self.transaction, events).await
    }

    async fn mark_refused(&mut self, refused: &[(ClaimedEvent, Refusal)]) -> Result<(), Error> {
        outbox::mark_refused(&mut self.transaction, refused).await
    }

    async fn commit(mut self, confirmed: &[ClaimedEvent]) -> Result<(), Error> {
        if self.once_published == OncePublished::Mark {
            return outbox::mark_published_and_commit(self.transaction, confirmed).await;
        }
        let seqs: Vec<_> = confirmed.iter().map(|event| event.seq).collect();
        sqlx::query("delete from outbox where seq = any($1)")
            .bind(seqs)
            .execute(&mut *self.transaction)
            .await
            .map_err(failed("failed to delete what was published"))?;
        self.transaction.commit().await.map_err(failed("failed to commit the marks"))
    }
}
