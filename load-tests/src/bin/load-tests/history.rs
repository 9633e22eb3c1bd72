//! An outbox with a past: small events that were published long ago, written as fast as the database takes them.

use anyhow::{Context as _, Result};
use sqlx::PgConnection;

/// Written in one go; more at once would be one very long transaction.
const AT_ONCE: i64 = 500_000;

/// Adds so many events that were published `age` ago (as PostgreSQL writes an interval), and the statistics of them.
///
/// # Errors
/// When the database fails.
pub(crate) async fn write(database: &mut PgConnection, events: i64, age: &str) -> Result<()> {
    let mut left = events;
    while left > 0 {
        let now = left.min(AT_ONCE);
        let fill = sqlx::query(
            "insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                                 schema_version, payload, lane, created_at, published_at)
             select gen_random_uuid(), 'order', gen_random_uuid(), 1, 'OrderCreated', 1, '{}', number % 16,
                    clock_timestamp() - $2::text::interval, clock_timestamp() - $2::text::interval
             from generate_series(1, $1) as number",
        );
        fill.bind(now).bind(age).execute(&mut *database).await.context("cannot write a history")?;
        left -= now;
    }
    sqlx::query("vacuum analyze outbox").execute(&mut *database).await?;
    Ok(())
}
