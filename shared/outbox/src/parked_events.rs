//! Optional. Without it: an operator replays and discards with SQL.
//!
//! Events of the outbox: those that are parked, and published ones that are to be published again.
//!
//! After a change the caller wakes the relays.

use database::Pool;
use messaging::replay::{Page, ReplayPolicy, Selection, next_page};
use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::types::Json;
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

/// The most events that one call replays, and the most ids that it takes.
pub const MAX_REPLAY: i64 = 1_000;

/// `created_at` follows `seq`, except by as much as the database's clock was ever wrong. Less than this is allowed for.
const CLOCK_SLACK: Duration = Duration::hours(1);

/// So many events in a row may be dated further ahead, by a clock that was wrong for a few minutes.
const MAX_DATED_AHEAD: i64 = 10_000;

/// Within this time of its creation an event is published, or the index `outbox_published_late` contains it.
const LATE: Duration = Duration::minutes(10);

/// An event of the outbox as an operator sees it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OutboxEvent {
    pub seq: i64,
    pub event_id: Uuid,
    pub event_type: String,
    pub aggregate_id: Uuid,
    pub aggregate_version: i32,
    pub attempts: i16,
    /// Why the broker refused the last failed attempt.
    pub last_error: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub parked_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub published_at: Option<OffsetDateTime>,
    /// How many later events of its aggregate are pending: they wait behind it while it is parked.
    pub waiting_behind: i64,
    /// The message as it is published. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Json<Box<RawValue>>>,
}

/// What became of one event in a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplayOutcome {
    /// It is pending again, with a new retry schedule. The relay publishes it under the same id.
    Pending,
    /// In a dry run: a replay would make it pending.
    WouldBePending,
    /// Refused: older than [`ReplayPolicy::max_age`]. `force` replays it all the same.
    TooOld,
    /// There is no such event, or it is not in the requested state.
    NotFound,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayResult {
    pub event_id: Uuid,
    pub outcome: ReplayOutcome,
}

/// Lists parked events in their order, after `seq` `after`.
pub async fn list(pool: &Pool, after: i64, limit: u8) -> Result<Page<OutboxEvent>, sqlx::Error> {
    // `attempts > 0` is the condition of the index `outbox_failed`; no event is parked without an attempt.
    let items = sqlx::query_as!(
        OutboxEvent,
        r#"select seq, event_id, event_type, aggregate_id, aggregate_version, attempts, last_error, created_at,
                  parked_at, published_at, null as "payload: Json<Box<RawValue>>",
                  (select count(*) from outbox later
                   where later.aggregate_id = outbox.aggregate_id and later.seq > outbox.seq
                     and later.published_at is null) as "waiting_behind!"
           from outbox
           where published_at is null and attempts > 0 and parked_at is not null and seq > $1
           order by seq
           limit $2"#,
        after,
        i64::from(limit),
    )
    .fetch_all(pool)
    .await?;
    Ok(Page { next: next_page(&items, limit.into(), |item| item.seq), items })
}

/// Reads one event with its payload; `None` if the outbox has none with this id.
pub async fn show(pool: &Pool, event_id: Uuid) -> Result<Option<OutboxEvent>, sqlx::Error> {
    sqlx::query_as!(
        OutboxEvent,
        r#"select seq, event_id, event_type, aggregate_id, aggregate_version, attempts, last_error, created_at,
                  parked_at, published_at, payload as "payload: Json<Box<RawValue>>",
                  (select count(*) from outbox later
                   where later.aggregate_id = outbox.aggregate_id and later.seq > outbox.seq
                     and later.published_at is null) as "waiting_behind!"
           from outbox where event_id = $1"#,
        event_id,
    )
    .fetch_optional(pool)
    .await
}

/// Which events a replay may select.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replayed {
    /// Parked events: the relay tries them again, and those that wait behind them follow, in order. Old ones are refused
    /// although they were never confirmed: an attempt without an answer may have arrived.
    Parked,
    /// Published events: consumers that have applied them drop the copies, and one that has lost its queue or its tables
    /// receives what it lacks.
    Published,
}

/// Makes events pending again, under their own ids and with a new retry schedule. In a dry run it changes nothing.
pub async fn replay(
    pool: &Pool,
    replayed: Replayed,
    selection: &Selection<Uuid>,
    policy: ReplayPolicy,
) -> Result<Page<ReplayResult>, sqlx::Error> {
    let (found, by_id);
    let (selection, next) = if replayed == Replayed::Published && (selection.from.or(selection.to)).is_some()
    {
        found = published_in_period(pool, selection).await?;
        let ids = found.iter().map(|(_, event_id)| *event_id).collect();
        by_id = Selection { ids: Some(ids), ..selection.clone() };
        (&by_id, next_page(&found, MAX_REPLAY, |(seq, _)| *seq))
    } else {
        (selection, None)
    };
    // Age counts from the creation: the event was applied after that, so the record of a young one still exists.
    let rows = sqlx::query!(
        r#"with chosen as (
               select seq, event_id, created_at >= clock_timestamp() - make_interval(secs => $5) or $6 as allowed
               from outbox
               where case when $8 then published_at is not null
                          else published_at is null and attempts > 0 and parked_at is not null end
                 and case when $1::uuid[] is null then seq > $4 else event_id = any($1) end
                 and ($2::timestamptz is null or coalesce(published_at, parked_at) >= $2)
                 and ($3::timestamptz is null or coalesce(published_at, parked_at) < $3)
               order by seq
               limit $7
               for update
           ), replayed as (
               update outbox
               set published_at = null, parked_at = null, attempts = 0, available_at = clock_timestamp()
               from chosen where outbox.seq = chosen.seq and chosen.allowed and not $9
           )
           select seq, event_id, allowed as "allowed!" from chosen order by seq"#,
        selection.ids.as_deref(),
        selection.from,
        selection.to,
        selection.after,
        policy.max_age.as_secs_f64(),
        policy.force,
        MAX_REPLAY,
        replayed == Replayed::Published,
        selection.dry_run,
    )
    // Also a dry run: its row locks make it a commit that waits for the standby.
    .fetch_all(pool.for_writing()?)
    .await?;
    let outcome = |allowed| match (allowed, selection.dry_run) {
        (true, false) => ReplayOutcome::Pending,
        (true, true) => ReplayOutcome::WouldBePending,
        (false, _) => ReplayOutcome::TooOld,
    };
    let replayed =
        rows.iter().map(|row| ReplayResult { event_id: row.event_id, outcome: outcome(row.allowed) });
    let missing = selection.missing(|id| rows.iter().any(|row| row.event_id == *id));
    let not_found = missing.map(|id| ReplayResult { event_id: *id, outcome: ReplayOutcome::NotFound });
    let items = replayed.chain(not_found).collect();
    Ok(Page { items, next: next.or(selection.next_page(&rows, MAX_REPLAY, |row| row.seq)) })
}

/// The first events after `selection.after` that were published in its period. No index has their time: every mark would
/// maintain it. So this reads what was created in the period or within [`LATE`] before it, and with an index what
/// was published later than that: after an outage, a refusal or a replay.
async fn published_in_period(
    pool: &Pool,
    selection: &Selection<Uuid>,
) -> Result<Vec<(i64, Uuid)>, sqlx::Error> {
    let mut first = selection.after;
    if let Some(from) = selection.from {
        first = first.max(last_created_before(pool, from.saturating_sub(LATE + CLOCK_SLACK), 0).await?);
    }
    let last = match selection.to {
        Some(to) => last_of_all_created_before(pool, to.saturating_add(CLOCK_SLACK)).await?,
        None => i64::MAX,
    };
    let found = sqlx::query!(
        r#"(select seq as "seq!", event_id as "event_id!" from outbox
            where published_at - created_at > interval '10 minutes' and seq > $1 and seq <= $2
              and ($4::timestamptz is null or published_at >= $4) and ($5::timestamptz is null or published_at < $5)
            order by seq limit $6)
           union all
           (select seq, event_id from outbox
            where seq > $2 and seq <= $3
              and ($4::timestamptz is null or published_at >= $4) and ($5::timestamptz is null or published_at < $5)
            order by seq limit $6)
           order by 1 limit $6"#,
        selection.after,
        first,
        last,
        selection.from,
        selection.to,
        MAX_REPLAY,
    )
    .fetch_all(pool)
    .await?;
    Ok(found.into_iter().map(|row| (row.seq, row.event_id)).collect())
}

/// Like [`last_created_before`], but events that are dated ahead do not hide those behind them.
async fn last_of_all_created_before(pool: &Pool, time: OffsetDateTime) -> Result<i64, sqlx::Error> {
    let mut last = 0;
    loop {
        last = last_created_before(pool, time, last).await?;
        let behind = sqlx::query_scalar!(
            "select max(seq) from (select seq, created_at from outbox where seq > $1 order by seq limit $3) as next
             where created_at < $2",
            last,
            time,
            MAX_DATED_AHEAD,
        );
        match behind.fetch_one(pool).await? {
            Some(behind) => last = behind,
            None => return Ok(last),
        }
    }
}

/// The `seq` of the last event after `low` that was created before `time`, by bisection over the primary key: two dozen rows are
/// read.
async fn last_created_before(pool: &Pool, time: OffsetDateTime, low: i64) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"with recursive bisection (low, high) as (
               select $2::bigint, coalesce(max(seq), 0) + 1 from outbox
               union all
               select case when older then middle else low end, case when older then high else middle end
               from bisection
               cross join lateral (select (low + high) / 2 as middle) as half
               cross join lateral (
                   select coalesce((select created_at < $1 from outbox where seq >= middle order by seq limit 1), false)
               ) as probe (older)
               where high - low > 1
           )
           select max(low) as "seq!" from bisection"#,
        time,
        low,
    )
    .fetch_one(pool)
    .await
}

/// A parked event that was discarded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Discarded {
    pub aggregate_id: Uuid,
    /// The version that no consumer will receive.
    pub gap: i32,
    /// The later versions that had waited and are published now: at most a hundred are named.
    pub follow: Vec<i32>,
}

/// Discards a parked event: it is never published, and the aggregate's later events go on without it. Consumers see a
/// gap in `sequence`. `note` says why, for those who find that gap. `None`: no parked event has this id.
pub async fn discard(pool: &Pool, event_id: Uuid, note: &str) -> Result<Option<Discarded>, sqlx::Error> {
    // Moved in one statement: the row is in one table or in the other, never in both or in neither.
    sqlx::query_as!(
        Discarded,
        r#"with gone as (
               delete from outbox
               where event_id = $1 and published_at is null and parked_at is not null
               returning *
           ), kept as (
               insert into outbox_discarded select gone.*, clock_timestamp(), $2 from gone
               returning seq, aggregate_id, aggregate_version
           )
           select aggregate_id, aggregate_version as gap,
                  array(select later.aggregate_version from outbox later
                        where later.aggregate_id = kept.aggregate_id and later.seq > kept.seq
                          and later.published_at is null
                        order by later.seq limit 100) as "follow!"
           from kept"#,
        event_id,
        note,
    )
    .fetch_optional(pool.for_writing()?)
    .await
}
