//! What the relay writes after the broker has answered, in the transaction that holds the lanes.

use database::Session;
use messaging::Refusal;
use sqlx::{AssertSqlSafe, PgConnection, Row as _, raw_sql};

use crate::{Error, failed, store::ClaimedEvent};

/// The limits of the waits after the first, second, … failed attempt of one event, in seconds. Each wait is drawn evenly
/// from zero to its limit (full jitter). The length is the maximum number of attempts, so the last wait never happens:
/// the schedule takes ten minutes on average, and nineteen at most.
pub const RETRY_SECONDS: [f64; 13] =
    [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 300.0, 300.0, 300.0];

/// The most attempts that negative acknowledgements use up: the event is tried again within a minute, and never parked for
/// them. Its other attempts remain for a refusal that is its own.
pub const MAX_NACKED_ATTEMPTS: u8 = 7;

/// Marks events that the broker has confirmed, and commits, in one message to the server. If the marks fail, PostgreSQL skips
/// the commit.
///
/// `published_at is null` matters when an operator changed the row meanwhile: their mark stands. A relay that was
/// frozen and lost its session needs no such guard: its transaction has died with the session and marks nothing.
pub async fn mark_published_and_commit(
    mut session: Session,
    confirmed: &[ClaimedEvent],
) -> Result<(), Error> {
    // Only numbers are in it.
    let sql = format!(
        "update outbox set published_at = clock_timestamp()
         where seq = any('{}') and published_at is null
         returning event_type, extract(epoch from published_at - created_at)::double precision as waited;
         commit",
        array(confirmed.iter().map(|event| event.seq)),
    );
    let marking = async {
        let rows = raw_sql(AssertSqlSafe(sql)).fetch_all(&mut *session).await?;
        rows.iter()
            .map(|row| Ok((row.try_get("event_type")?, row.try_get("waited")?)))
            .collect::<Result<Vec<(String, f64)>, sqlx::Error>>()
    };
    let marked = marking.await.map_err(failed("failed to mark events as published"))?;
    session.finish();
    for (event_type, waited) in marked {
        metrics::counter!("outbox_published_total", "event_type" => event_type).increment(1);
        metrics::histogram!("outbox_commit_to_publish_seconds").record(waited);
    }
    Ok(())
}

/// An array of numbers as PostgreSQL reads it.
pub(crate) fn array(numbers: impl IntoIterator<Item = i64>) -> String {
    let numbers: Vec<_> = numbers.into_iter().map(|number| number.to_string()).collect();
    format!("{{{}}}", numbers.join(","))
}

/// Writes an event as it is, to the columns that a mark writes.
pub async fn try_write(transaction: &mut PgConnection, seq: i64) -> Result<(), Error> {
    sqlx::query!("update outbox set published_at = published_at where seq = $1", seq)
        .execute(transaction)
        .await
        .map_err(failed("failed to write to the outbox after failed marks"))?;
    Ok(())
}

/// Records which events the broker refused: when to try each again, or, at the end of the schedule, that it is parked. An
/// event that only queues refuse is never parked: it needs no more than room in the queue, and no operator.
///
/// One statement for all of them. A full queue refuses hundreds at once, and the lanes are locked until the last is recorded:
/// one by one, over a link to the database that takes 0.7 s there and back, that was five minutes in which no other event
/// was published.
pub async fn mark_refused(
    transaction: &mut PgConnection,
    refused: &[(ClaimedEvent, Refusal)],
) -> Result<(), Error> {
    let seqs: Vec<_> = refused.iter().map(|(event, _)| event.seq).collect();
    let reasons: Vec<_> = refused.iter().map(|(_, refusal)| refusal.to_string()).collect();
    let may_be_final: Vec<_> = refused.iter().map(|(_, refusal)| refusal.may_be_final()).collect();
    let rows = sqlx::query!(
        r#"update outbox
           set attempts = case when may_be_final then attempts + 1
                               else greatest(attempts, least(attempts + 1, $5::smallint)) end,
               last_error = reason,
               available_at = clock_timestamp() + random() * interval '1 second'
                   * coalesce(($4::float8[])[case when may_be_final then attempts else least(attempts, $5) end + 1], 0),
               parked_at = case when may_be_final and attempts + 1 >= cardinality($4::float8[]) then clock_timestamp() end
           from unnest($1::bigint[], $2::text[], $3::boolean[]) as refused (refused_seq, reason, may_be_final)
           where seq = refused_seq and published_at is null
           returning event_id, event_type, aggregate_id, attempts, reason as "reason!", parked_at is not null as "parked!""#,
        &seqs,
        &reasons,
        &may_be_final,
        &RETRY_SECONDS[..],
        i16::from(MAX_NACKED_ATTEMPTS),
    )
    .fetch_all(transaction)
    .await
    .map_err(failed("failed to record refused events"))?;
    for (event, refusal) in refused {
        let event_type = event.message.event_type.clone();
        let reason = refusal.reason();
        metrics::counter!("outbox_failed_total", "event_type" => event_type, "reason" => reason).increment(1);
    }
    for row in rows {
        let (event_id, event_type, aggregate_id) = (row.event_id, row.event_type, row.aggregate_id);
        let (attempt, refusal) = (row.attempts, row.reason);
        if row.parked {
            tracing::error!(
                %event_id, event_type, %aggregate_id, attempt, refusal,
                "event parked; later events of this aggregate wait for an operator"
            );
        } else {
            tracing::warn!(
                %event_id, event_type, %aggregate_id, attempt, refusal,
                "event refused; the relay will retry"
            );
        }
    }
    Ok(())
}
