//! The idempotent consumer: whether an event is seen for the first time is decided in the transaction of its effect.
//!
//! Delivery is at least once, so every handler sees some events twice. Looking the event up first and applying it
//! afterwards would leave a gap in which a second delivery, on another connection, sees nothing either. Here the row
//! in `processed_events` is *inserted*, in the same transaction as the effect, and its primary key decides. Transactions
//! of one consumer take turns, so the second one waits for the first one's commit and then knows.
//!
//! ```text
//! begin; first_time(…); the effects of what it returned; commit; acknowledge
//! ```
//!
//! [`DeadLetters`] keeps what could not be applied, and [`operator`] is what people can do about it.
//!
//! Memory is not for ever: [`Retention`] erases records that are older than any copy that can still arrive. A copy that
//! comes even later is applied again, which is why the bound is a setting with a rule beside it.

mod dead_letters;
pub mod operator;
mod retention;

use std::collections::HashSet;

use events::{Event, transport::Applied, transport::Failure};
use faults::Point;
use runtime::database::is_away;
use sqlx::PgConnection;
use time::OffsetDateTime;

pub use dead_letters::DeadLetters;
pub use retention::{Retention, Round};

/// The tables of an inbox, to be applied in the schema of the service that owns it.
pub static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../../migrations/inbox");

/// Records the events of a group as processed by `consumer`, and returns those that had not been, in their order and
/// each once, even if the group itself holds an event twice. Apply exactly these, in this transaction.
///
/// # Errors
/// A [`Failure`] that says what should become of the group.
pub async fn first_time<'group>(
    transaction: &mut PgConnection,
    consumer: &str,
    group: &'group [Event],
) -> Result<Vec<&'group Event>, Failure> {
    // One transaction of a consumer at a time. The queue's single active consumer sees to that, but an operator's replay
    // comes from aside: an order's creation and its cancellation, applied by two transactions at once, would each not see
    // the other, and stock would stay reserved for good. Two groups that hold the same events in different orders would
    // wait for each other. A statement of its own, because the ones that follow have to look after the other's commit.
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
    .fetch_all(&mut *transaction)
    .await
    .map_err(failure)?;
    #[cfg(feature = "drill")]
    if faults::sabotaged(faults::Sabotage::DedupeOutsideTransaction) {
        sqlx::raw_sql("commit; begin").execute(transaction).await.map_err(failure)?;
    }
    faults::reach(Point::InboxRecorded);
    let mut new: HashSet<_> = inserted.into_iter().collect();
    Ok(group.iter().filter(|event| new.remove(&event.id)).collect())
}

/// Counts and logs what was applied. To be called after the commit, and only then.
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
            tracing::info!("applied");
        } else {
            metrics::counter!("inbox_duplicates_total", "event_type" => event.event_type).increment(1);
            tracing::info!("dropped a duplicate");
        }
    }
    Applied { first: first.len(), duplicates: group.len() - first.len() }
}

/// Sorts database errors into the three kinds of [`Failure`].
pub fn failure(error: sqlx::Error) -> Failure {
    let code = error.as_database_error().and_then(|refused| refused.code());
    let class = code.as_deref().and_then(|code| code.get(..2));
    // Data that does not fit and constraints that do not hold: the same again next time.
    if matches!(class, Some("22" | "23")) {
        return Failure::Permanent(error.into());
    }
    // A lock, or an object in use, is waited for as well.
    let temporary = class == Some("55") || is_away(&error);
    if temporary { Failure::Temporary(error.into()) } else { Failure::Unexpected(error.into()) }
}
