//! Events that were published long ago, written as fast as the database takes them.

use anyhow::{Context as _, Result};
use sqlx::PgConnection;

/// One transaction writes at most this many events; more would make it very long.
const EVENTS_PER_TRANSACTION: i64 = 500_000;

/// Adds `events` small events that were published `age` ago (a PostgreSQL interval), and updates the statistics.
pub(crate) async fn write(database: &mut PgConnection, events: i64, age: &str) -> Result<()> {
    let mut left = events;
    while left > 0 {
        let now = left.min(EVENTS_PER_TRANSACTION);
        let fill = sqlx::query(
            "insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                                 schema_version, payload, lane, created_at, published_at)
             select gen_random_uuid(), 'order', gen_random_uuid(), 1, 'OrderConfirmed', 1, '{}', number % 16,
                    clock_timestamp() - $2::text::interval, clock_timestamp() - $2::text::interval
             from generate_series(1, $1) as number",
        );
        let filled = fill.bind(now).bind(age).execute(&mut *database).await;
        filled.context("failed to write published events")?;
        left -= now;
    }
    sqlx::query("vacuum analyze outbox").execute(&mut *database).await?;
    Ok(())
}
