//! The idempotent consumer: whether an event is new is decided in the transaction of its effect.
//!
//! Delivery is at least once, so every handler receives some events twice. Looking the event up first and applying it
//! afterwards would leave a gap in which a second delivery, on another connection, finds nothing either. So the row in
//! `processed_events` is *inserted*, in the same transaction as the effect, and its primary key decides. Transactions of
//! one consumer that have a lane in common run one after the other, so the second waits for the first one's commit and then
//! knows.
//!
//! ```text
//! INBOX.apply_once(…): begin; record as processed; the effect of what is new; commit. Then the consumer acknowledges.
//! ```
//!
//! Events of one aggregate are applied in their order. If one of them can never be applied, it becomes a dead letter, and
//! the later ones wait behind it ([`Inbox::keeps_order`]), in the same table, until an operator replays or discards it.
//!
//! [`DeadLetterTable`] keeps messages that could not be applied. [`retention()`] erases records that are older than any
//! copy that can still arrive; a copy that comes even later is applied again, which is why the time is a setting with a
//! rule beside it.

mod dead_letter_table;
pub mod dead_letters;
mod retention;

use std::collections::HashSet;

use database::{Fault, Pool, Session};
use events::{
    Event, lane,
    spans::{Kind, Span},
};
use messaging::{Applied, Failure, crash_points::crash_point};
use sqlx::{AssertSqlSafe, PgConnection, Row as _, raw_sql};
use time::OffsetDateTime;
use uuid::Uuid;

pub use dead_letter_table::DeadLetterTable;
pub use retention::retention;

/// The tables of an inbox, to be applied in the schema of the service that owns it.
pub static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../../migrations/inbox");

/// One consumer of a service, as its tables name it.
#[derive(Debug, Clone, Copy)]
pub struct Inbox {
    /// The name under which processed events are recorded.
    pub consumer: &'static str,
    /// The queue that it consumes, and whose dead letters are its own.
    pub queue: &'static str,
    /// Whether an event waits while an older one of its aggregate is a dead letter. Without, it is applied all the same:
    /// right for a consumer to whose effects the order makes no difference.
    pub keeps_order: bool,
}

impl Inbox {
    /// Applies the new events of a group, each once: `effect` writes to the transaction that records them as processed.
    /// What it returns is for the caller, after the commit.
    ///
    /// # Errors
    /// A [`Failure`] that says what the consumer should do with the group: nothing of it was committed, or it is unknown
    /// whether it was, and then the next delivery decides.
    pub async fn apply_once<'group, T>(
        &self,
        pool: &Pool,
        group: &'group [Event],
        effect: impl AsyncFnOnce(&mut PgConnection, &[&'group Event]) -> Result<T, Error>,
    ) -> Result<(Applied, T), Error> {
        let (mut transaction, new) = self.first_time(pool, group).await?;
        let done = effect(&mut transaction, &new).await?;
        crash_point("effect-written");
        // The record "processed", the effect and its events are committed together. The acknowledgement comes after this
        // line: before it, a crash would lose the event; after it, a crash only causes a duplicate. A group of duplicates has
        // written nothing.
        let committed =
            if new.is_empty() { transaction.commit_read().await } else { transaction.commit().await };
        committed?;
        crash_point("effect-committed");
        Ok((self.applied(group, &new), done))
    }

    /// Begins a transaction when no other one of this consumer is open, in whatever lanes: it may change any dead letter.
    ///
    /// # Errors
    /// When the database does not answer, or when another transaction holds the lock for longer than a statement may take.
    pub async fn begin(&self, pool: &Pool) -> Result<Session, sqlx::Error> {
        // Safe: a consumer's name is a constant of its service.
        pool.begin_with(AssertSqlSafe(format!("begin; select inbox_lock('{}')", self.consumer))).await
    }

    /// Begins a transaction when no other one of this consumer has a lane of these events, records them as processed, and
    /// returns those that are new: in their order, and each once even if the group holds an event twice. Exactly these are to
    /// be applied in this transaction.
    ///
    /// The single active consumer of each partition ensures that too, but an operator's replay does not come through a queue:
    /// an order's creation and its cancellation, applied by two transactions at once, would not see each other, and stock
    /// would stay reserved for good. Two groups that hold the same events in different orders would deadlock.
    ///
    /// # Errors
    /// A [`Failure`] that says what the consumer should do with the group: [`Failure::Behind`] if some must wait.
    pub async fn first_time<'group>(
        &self,
        pool: &Pool,
        group: &'group [Event],
    ) -> Result<(Session, Vec<&'group Event>), Error> {
        let array = |value: fn(&Event) -> String| group.iter().map(value).collect::<Vec<_>>().join(",");
        // As text: a prepared statement would need its own message for `begin`. Only ids, and names that are constants
        // of a service, are in it.
        let sql = format!(
            "begin; select * from inbox_first_time('{}', '{}', {}, '{{{}}}', '{{{}}}', '{{{}}}', '{{{}}}')",
            self.consumer,
            self.queue,
            self.keeps_order,
            array(|event| event.id.to_string()),
            array(|event| event.event_type.to_owned()),
            array(|event| event.aggregate_id.to_string()),
            array(|event| lane(event.aggregate_id).to_string()),
        );
        let mut session = pool.for_writing()?.acquire().await?;
        let rows = raw_sql(AssertSqlSafe(sql)).fetch_all(&mut *session).await?;
        crash_point("inbox-recorded");
        let (mut new, mut behind) = (HashSet::new(), HashSet::new());
        for row in rows {
            let ids = if row.try_get("behind")? { &mut behind } else { &mut new };
            ids.insert(row.try_get::<Uuid, _>("event_id")?);
        }
        if !behind.is_empty() {
            session.rollback().await?;
            return Err(Failure::Behind(behind).into());
        }
        Ok((session, group.iter().filter(|event| new.remove(&event.id)).collect()))
    }

    /// Counts, logs and records what was applied.
    fn applied(&self, group: &[Event], first: &[&Event]) -> Applied {
        let mut new: HashSet<_> = first.iter().map(|event| event.id).collect();
        for event in group {
            let span = tracing::info_span!(
                "process",
                event_id = %event.id,
                event_type = event.event_type,
                aggregate_id = %event.aggregate_id,
                trace_id = event.trace.trace_id(),
            );
            let _entered = span.enter();
            let is_new = new.remove(&event.id);
            if is_new {
                let waited = (OffsetDateTime::now_utc() - event.time).as_seconds_f64();
                metrics::counter!("inbox_applied_total", "event_type" => event.event_type).increment(1);
                metrics::histogram!("inbox_commit_to_applied_seconds").record(waited.max(0.0));
                tracing::info!("event applied");
            } else {
                metrics::counter!("inbox_duplicates_total", "event_type" => event.event_type).increment(1);
                tracing::info!("duplicate dropped");
            }
            events::spans::record(|| self.span(event, is_new));
        }
        Applied { first: first.len(), duplicates: group.len() - first.len() }
    }

    /// From the decoding of an event until the commit of its group, with all attempts in between.
    fn span(&self, event: &Event, is_new: bool) -> Span {
        Span::ended(event.trace, Kind::Consumer, format!("process {}", event.event_type), event.received)
            .with("messaging.system", "rabbitmq")
            .with("messaging.operation.type", "process")
            .with("messaging.operation.name", "process")
            .with("messaging.destination.name", self.queue)
            .with("messaging.message.id", event.id.to_string())
            .with("shop.aggregate_id", event.aggregate_id.to_string())
            .with("shop.duplicate", !is_new)
    }
}

/// What the consumer should do with the group of an effect that failed: `?` decides it by the cause.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Error(#[from] pub Failure);

/// What is not the message's fault is temporary: as a message's own failure it would move a whole queue to the dead
/// letters.
impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        Self(match Fault::of(&error) {
            Fault::Data => Failure::Permanent(error.into()),
            Fault::TooSlow => Failure::TooSlow(error.into()),
            Fault::Deployment | Fault::Server | Fault::Locked => Failure::Temporary(error.into()),
            Fault::Unknown => Failure::Unexpected(error.into()),
        })
    }
}

/// An answer that cannot be encoded.
impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self(Failure::Unexpected(error.into()))
    }
}

impl From<Error> for Failure {
    fn from(Error(failure): Error) -> Self {
        failure
    }
}
