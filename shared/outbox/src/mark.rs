//! What is written down after the broker has answered, in the transaction that holds the lanes.

use events::transport::Refusal;
use sqlx::PgConnection;

use crate::{Error, failed, store::Claimed};

/// The waits after the first, second, … failure of one event, in seconds; its length is how often an event is tried, so
/// the last one is never waited for. Each is a limit below which the wait is drawn evenly (full jitter): the schedule
/// takes ten minutes on average, and nineteen at most.
pub const RETRY_SECONDS: [f64; 13] =
    [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 300.0, 300.0, 300.0];

/// Records what the broker has confirmed.
///
/// `published_at is null` is no decoration: if this relay was frozen, lost its session and its lanes, and another one
/// has published these events since, then this transaction has died with the session and does nothing at all; and if
/// an operator got in between, their mark stands.
pub(crate) async fn published(transaction: &mut PgConnection, confirmed: &[Claimed]) -> Result<(), Error> {
    let seqs: Vec<_> = confirmed.iter().map(|event| event.seq).collect();
    let rows = sqlx::query!(
        r#"update outbox set published_at = clock_timestamp()
           where seq = any($1) and published_at is null
           returning event_type, extract(epoch from published_at - created_at)::float8 as "waited!""#,
        &seqs,
    )
    .fetch_all(transaction)
    .await
    .map_err(failed("cannot mark events as published"))?;
    for row in rows {
        metrics::counter!("outbox_published_total", "event_type" => row.event_type).increment(1);
        metrics::histogram!("outbox_commit_to_publish_seconds").record(row.waited);
    }
    Ok(())
}

/// Records that the broker refused one event: when to try again, or, at the end of the schedule, that it is parked.
pub(crate) async fn refused(
    transaction: &mut PgConnection,
    event: &Claimed,
    refusal: Refusal,
) -> Result<(), Error> {
    let event_type = event.message.event_type.as_str();
    let row = sqlx::query!(
        r#"update outbox
           set attempts = attempts + 1,
               last_error = $2,
               available_at = clock_timestamp()
                   + random() * coalesce(($3::float8[])[attempts + 1], 0) * interval '1 second',
               parked_at = case when attempts + 1 >= cardinality($3::float8[]) then clock_timestamp() end
           where seq = $1 and published_at is null
           returning event_id, aggregate_id, attempts, parked_at is not null as "parked!""#,
        event.seq,
        refusal.to_string(),
        &RETRY_SECONDS[..],
    )
    .fetch_optional(transaction)
    .await
    .map_err(failed("cannot record a refused event"))?;
    metrics::counter!("outbox_failed_total", "event_type" => event_type.to_owned(), "reason" => refusal.reason())
        .increment(1);
    let Some(row) = row else { return Ok(()) };
    let (event_id, aggregate_id, attempt) = (row.event_id, row.aggregate_id, row.attempts);
    if row.parked {
        tracing::error!(
            %event_id, event_type, %aggregate_id, attempt,
            "parked: {refusal}; later events of this aggregate wait for an operator"
        );
    } else {
        tracing::warn!(%event_id, event_type, %aggregate_id, attempt, "refused: {refusal}; will be tried again");
    }
    Ok(())
}
