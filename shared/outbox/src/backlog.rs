//! How much the outbox owes, and for how long already.

use std::time::Duration;

use sqlx::PgPool;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// How often the backlog is counted. Together with the deadline below, what `/metrics` shows is at most five seconds
/// old, or is unknown.
const EVERY: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(2);

/// Counts the backlog into the gauges `outbox_pending`, `outbox_oldest_pending_age_seconds` and `outbox_parked`, until
/// `stop`. When the database does not answer they become NaN: unknown is never shown as zero.
pub async fn observe(pool: PgPool, stop: CancellationToken) {
    let observing = async {
        loop {
            match timeout(PATIENCE, count(&pool)).await {
                Ok(Ok(backlog)) => show(backlog.pending, backlog.oldest_age, backlog.parked),
                Ok(Err(_)) | Err(_) => show(f64::NAN, f64::NAN, f64::NAN),
            }
            sleep(EVERY).await;
        }
    };
    stop.run_until_cancelled(observing).await;
}

fn show(pending: f64, oldest_age: f64, parked: f64) {
    metrics::gauge!("outbox_pending").set(pending);
    metrics::gauge!("outbox_oldest_pending_age_seconds").set(oldest_age);
    metrics::gauge!("outbox_parked").set(parked);
}

struct Backlog {
    pending: f64,
    oldest_age: f64,
    parked: f64,
}

async fn count(pool: &PgPool) -> Result<Backlog, sqlx::Error> {
    // One statement that ends by itself: it may be cancelled at any moment without leaving a transaction behind. Each
    // half repeats the condition of a partial index to the letter, so that neither ever walks over the history.
    sqlx::query_as!(
        Backlog,
        r#"select owed.pending as "pending!", owed.oldest_age as "oldest_age!", troubled.parked as "parked!"
           from (select count(*)::float8 as pending,
                        coalesce(extract(epoch from clock_timestamp() - min(created_at)), 0)::float8 as oldest_age
                 from outbox where published_at is null and parked_at is null) owed,
                (select count(*)::float8 as parked
                 from outbox where published_at is null and attempts > 0 and parked_at is not null) troubled"#
    )
    .fetch_one(pool)
    .await
}
