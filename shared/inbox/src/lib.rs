//! The idempotent consumer: whether an event is new is decided in the transaction of its effect.
//!
//! Delivery is at least once, so every handler receives some events twice. Looking the event up first and applying it
//! afterwards would leave a gap in which a second delivery, on another connection, finds nothing either. So the row in
//! `processed_events` is *inserted*, in the same transaction as the effect, and its primary key decides. Transactions of
//! one consumer run one after the other, so the second waits for the first one's commit and then knows.
//!
//! ```text
//! begin; first_time(…); the effects of what it returned; commit; acknowledge
//! ```
//!
//! [`DeadLetterTable`] keeps messages that could not be applied. [`retention()`] erases records that are older than any
//! copy that can still arrive; a copy that comes even later is applied again, which is why the time is a setting with a
//! rule beside it.

mod dead_letter_table;
mod retention;

use std::collections::HashSet;

use crash_points::crash_point;
use database::is_unavailable;
use events::Event;
use messaging::{Applied, Failure};
use sqlx::PgConnection;
use time::OffsetDateTime;

pub use dead_letter_table::DeadLetterTable;
pub use retention::retention;

/// The tables of an inbox, to be applied in the schema of the service that owns it.
pub static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../../migrations/inbox");

/// Records the events of a group as processed by `consumer`, and returns those that are new: in their order, and each
/// once even if the group holds an event twice. The caller applies exactly these, in this transaction.
///
/// # Errors
/// A [`Failure`] that says what the consumer should do with the group.
pub async fn first_time<'group>(
    transaction: &mut PgConnection,
    consumer: &str,
    group: &'group [Event],
) -> Result<Vec<&'group Event>, Failure> {
    // One transaction of a consumer at a time. The queue's single active consumer ensures that too, but an operator's
    // replay does not come through the queue: an order's creation and its cancellation, applied by two transactions at
    // once, would not see each other, and stock would stay reserved for good. Two groups that hold the same events in
    // different orders would deadlock. A statement of its own, because the next one has to see the other's commit.
    sqlx::query!("select pg_advisory_xact_lock(hashtextextended(current_schema || '.' || $1, 0))", consumer)
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
    let ids: Vec<_> = group.iter().map(|event| event.id).collect();
    let types: Vec<_> = group.iter().map(|event| event.event_type.to_owned()).collect();
    let inserted = sqlx::query_scalar!(
        "insert into processed_events (consumer, event_id, event_type)
         select $1, arrived.event_id, arrived.event_type
         from unnest($2::uuid[], $3::text[]) as arrived (event_id, event_type)
         on conflict do nothing
         returning event_id",
        consumer,
        &ids,
        &types,
    )
    .fetch_all(transaction)
    .await
    .map_err(failure)?;
    crash_point("inbox-recorded");
    let mut new: HashSet<_> = inserted.into_iter().collect();
    Ok(group.iter().filter(|event| new.remove(&event.id)).collect())
}

/// Counts and logs what was applied. Call it after the commit.
pub fn applied(group: &[Event], first: &[&Event]) -> Applied {
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
        if new.remove(&event.id) {
            let waited = (OffsetDateTime::now_utc() - event.time).as_seconds_f64();
            metrics::counter!("inbox_applied_total", "event_type" => event.event_type).increment(1);
            metrics::histogram!("inbox_commit_to_applied_seconds").record(waited.max(0.0));
            tracing::info!("event applied");
        } else {
            metrics::counter!("inbox_duplicates_total", "event_type" => event.event_type).increment(1);
            tracing::info!("duplicate dropped");
        }
    }
    Applied { first: first.len(), duplicates: group.len() - first.len() }
}

/// Maps database errors to the kinds of [`Failure`].
pub fn failure(error: sqlx::Error) -> Failure {
    let code = error.as_database_error().and_then(|refused| refused.code());
    let class = code.as_deref().and_then(|code| code.get(..2));
    // Data that does not fit, or a violated constraint: the next attempt would end the same way.
    if matches!(class, Some("22" | "23")) {
        return Failure::Permanent(error.into());
    }
    // A statement was cancelled at its time-out.
    if code.as_deref() == Some("57014") {
        return Failure::TooSlow(error.into());
    }
    // Class 55: a lock, or an object in use.
    let temporary = class == Some("55") || is_unavailable(&error);
    if temporary { Failure::Temporary(error.into()) } else { Failure::Unexpected(error.into()) }
}
