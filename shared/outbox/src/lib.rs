//! The transactional outbox: events are written in the transaction of the change that they describe, and a relay
//! publishes them afterwards.
//!
//! - [`append()`]: inserts events in the caller's transaction. Either both are there afterwards, or neither.
//! - [`relay()`]: the [`Relay`](messaging::Relay) of `shared/messaging`, which claims a batch by lanes, publishes it, and marks what was confirmed,
//!   over [`PostgresStore`].
//! - [`listen()`]: wake-ups of other processes, so that a new event does not wait for the next poll. Nothing relies on them.
//! - [`LogStore`]: optional, the outbox as a relay reads it from PostgreSQL's write-ahead log.
//! - [`retention()`]: erases published events after a while. [`observe_backlog`]: what is pending, for `/metrics`.
//!
//! This gives *at-least-once* delivery: a crash between the broker's confirm and the relay's mark publishes an event
//! again, with the same id. `shared/inbox` drops the second copy.

mod gauges;
mod listen;
mod log_relay;
pub mod parked_events;
mod postgres;
mod retention;
mod scan_watermark;

use events::NewEvent;
use sqlx::PgConnection;

pub use gauges::observe_backlog;
pub use listen::{announce, listen};
pub use log_relay::{LogStore, LogTransaction, observe_log};
pub use postgres::{
    PostgresStore, PostgresTransaction, claimed_event, mark_published_and_commit, mark_refused, relay,
    try_write,
};
pub use retention::retention;

/// The tables of an outbox, to be applied in the schema of the service that owns it.
pub static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../../migrations/outbox");

/// Inserts events in the caller's transaction: they become visible to the relay when and only when that commits.
///
/// The caller has changed the aggregates in the same transaction and so holds their row locks. That is why `seq`, the
/// order of publishing, follows the order of commits within an aggregate. Wake the relay after the commit, never
/// before: it would scan, find nothing, and sleep again.
///
/// A service whose whole change is one statement inserts the row in that statement instead (see `place_order` in the
/// order service): one round trip, and no `BEGIN` that a cancelled request could leave open.
///
/// A second event with the same version of an aggregate fails, and the whole transaction with it.
pub async fn append(transaction: &mut PgConnection, events: &[NewEvent]) -> Result<(), sqlx::Error> {
    if events.is_empty() {
        return Ok(());
    }
    let column =
        |text: fn(&NewEvent) -> &str| events.iter().map(|event| text(event).to_owned()).collect::<Vec<_>>();
    sqlx::query!(
        "insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                             payload, headers, lane)
         select event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                payload::json, headers, lane
         from unnest($1::uuid[], $2::text[], $3::uuid[], $4::int[], $5::text[], $6::smallint[], $7::text[],
                     $8::jsonb[], $9::smallint[]) with ordinality
                  as event (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                            payload, headers, lane, number)
         order by number",
        &events.iter().map(|event| event.event_id).collect::<Vec<_>>(),
        &column(|event| event.aggregate_type),
        &events.iter().map(|event| event.aggregate_id).collect::<Vec<_>>(),
        &events.iter().map(|event| event.aggregate_version).collect::<Vec<_>>(),
        &column(|event| event.event_type),
        &events.iter().map(|event| event.schema_version).collect::<Vec<_>>(),
        &column(|event| &event.payload),
        &events.iter().map(|event| event.headers.clone()).collect::<Vec<_>>(),
        &events.iter().map(|event| event.lane).collect::<Vec<_>>(),
    )
    .execute(transaction)
    .await?;
    Ok(())
}
