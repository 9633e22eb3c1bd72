use events::Draft;
use sqlx::PgConnection;

use crate::{Error, failed};

/// Writes an event in the caller's transaction: it becomes visible, and due, when and only when that commits.
///
/// The caller has changed the aggregate in the same transaction, and so holds its row lock: that is what makes the
/// outbox's order, `seq`, follow the order of commits within an aggregate. Wake the relay after the commit, never
/// before: it would look, see nothing, and go back to sleep.
///
/// A service whose whole change is one statement writes the row in that statement instead (see `place_order` in the
/// order service): one round trip, and no `BEGIN` that a cancelled request could leave behind.
///
/// # Errors
/// When the database refuses, for one because this aggregate already has an event with this version. The transaction
/// is then lost as a whole, which is the point.
pub async fn append(transaction: &mut PgConnection, event: &Draft) -> Result<(), Error> {
    sqlx::query!(
        "insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                             payload, headers, lane)
         values ($1, $2, $3, $4, $5, $6, $7::text::json, $8, $9)",
        event.event_id,
        event.aggregate_type,
        event.aggregate_id,
        event.aggregate_version,
        event.event_type,
        event.schema_version,
        event.payload,
        event.headers,
        event.lane,
    )
    .execute(transaction)
    .await
    .map_err(failed("cannot append to the outbox"))?;
    Ok(())
}
