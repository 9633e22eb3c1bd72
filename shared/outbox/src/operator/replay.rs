use serde::Serialize;
use sqlx::PgPool;
use uuid::Uuid;

use super::{MOST, Page, Rules, Which};
use crate::{Error, failed};

/// What became of one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It is owed again, with all its attempts before it. The relay publishes it, under the same id.
    Owed,
    /// Refused: older than the consumers' memory can be trusted with. `force` replays it all the same.
    TooOld,
    /// There is no such event, or not in the state that was asked for.
    NotThere,
}

/// One event, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Again {
    /// The event.
    pub event_id: Uuid,
    /// What became of it.
    pub outcome: Outcome,
}

/// Lets parked events be tried again from the start. Those that wait behind them follow, in order.
///
/// Old ones are refused too, although they were never confirmed: an attempt without an answer may have arrived.
///
/// # Errors
/// When the database does not answer.
pub async fn replay_parked(pool: &PgPool, which: &Which, rules: Rules) -> Result<Page<Again>, Error> {
    // Age counts from the writing: an event was applied after that, so what is young enough is remembered.
    let rows = sqlx::query!(
        r#"with chosen as (
               select seq, event_id, created_at >= clock_timestamp() - make_interval(secs => $5) or $6 as allowed
               from outbox
               where published_at is null and attempts > 0 and parked_at is not null
                 and case when $1::uuid[] is null then seq > $4 else event_id = any($1) end
                 and ($2::timestamptz is null or parked_at >= $2) and ($3::timestamptz is null or parked_at < $3)
               order by seq
               limit $7
               for update
           ), replayed as (
               update outbox set parked_at = null, attempts = 0, available_at = clock_timestamp()
               from chosen where outbox.seq = chosen.seq and chosen.allowed
           )
           select seq, event_id, allowed as "allowed!" from chosen order by seq"#,
        which.ids.as_deref(),
        which.from,
        which.to,
        which.after,
        rules.within.as_secs_f64(),
        rules.force,
        MOST,
    )
    .fetch_all(pool)
    .await
    .map_err(failed("cannot replay what is parked"))?;
    Ok(page(which, rows.into_iter().map(|row| (row.seq, row.event_id, row.allowed))))
}

/// Has published events published again, under their own ids: consumers that have applied them drop the copies, and one
/// that has lost its queue, or its tables, gets what it lacks.
///
/// # Errors
/// When the database does not answer. By time the whole history is looked through, which takes seconds per million.
pub async fn replay_published(pool: &PgPool, which: &Which, rules: Rules) -> Result<Page<Again>, Error> {
    let rows = sqlx::query!(
        r#"with chosen as (
               select seq, event_id, created_at >= clock_timestamp() - make_interval(secs => $5) or $6 as allowed
               from outbox
               where published_at is not null
                 and case when $1::uuid[] is null then seq > $4 else event_id = any($1) end
                 and ($2::timestamptz is null or published_at >= $2)
                 and ($3::timestamptz is null or published_at < $3)
               order by seq
               limit $7
               for update
           ), replayed as (
               update outbox set published_at = null, attempts = 0, available_at = clock_timestamp()
               from chosen where outbox.seq = chosen.seq and chosen.allowed
           )
           select seq, event_id, allowed as "allowed!" from chosen order by seq"#,
        which.ids.as_deref(),
        which.from,
        which.to,
        which.after,
        rules.within.as_secs_f64(),
        rules.force,
        MOST,
    )
    .fetch_all(pool)
    .await
    .map_err(failed("cannot replay what is published"))?;
    Ok(page(which, rows.into_iter().map(|row| (row.seq, row.event_id, row.allowed))))
}

fn page(which: &Which, rows: impl Iterator<Item = (i64, Uuid, bool)>) -> Page<Again> {
    let mut last = 0;
    let again = |(seq, event_id, allowed)| {
        last = seq;
        Again { event_id, outcome: if allowed { Outcome::Owed } else { Outcome::TooOld } }
    };
    let mut items: Vec<_> = rows.map(again).collect();
    let full = i64::try_from(items.len()) == Ok(MOST) && which.ids.is_none();
    let missing = which.ids.iter().flatten().filter(|id| items.iter().all(|again| again.event_id != **id));
    let missing: Vec<_> = missing.map(|id| Again { event_id: *id, outcome: Outcome::NotThere }).collect();
    items.extend(missing);
    Page { items, next: full.then_some(last) }
}
