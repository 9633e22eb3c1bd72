//! Optional. Without it: an operator lists, replays and discards dead letters with SQL.
//!
//! Dead letters: messages that this service could not apply.

use std::{slice, time::Duration};

use database::Pool;
use events::{Event, FORGED};
use messaging::{
    Applied, Failure, Handler, Incoming, SharedHandler,
    replay::{Page, ReplayPolicy, Selection, next_page},
};
use serde::{Serialize, Serializer, ser::SerializeMap as _};
use serde_json::{Value, value::RawValue};
use sqlx::types::Json;
use time::OffsetDateTime;
use tokio::time::timeout;
use uuid::Uuid;

use crate::{DeadLetterTable, Error};

/// The most dead letters that one call replays, and the most ids that it takes: it must end within the deadline of a
/// request.
pub const MAX_REPLAY: i64 = 50;

/// The most results of one call, with the events that wait behind what was selected.
const MAX_ITEMS: usize = 100;

/// The reason of a dead letter that was not applied because the database is unavailable.
const TEMPORARY: &str = "temporary";

const BEHIND: &str = "an older dead letter of its aggregate waits; replay that one, and this one follows";

/// How long the handler may take for one dead letter.
const HANDLER_DEADLINE: Duration = Duration::from_secs(10);

/// A dead letter as an operator sees it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetter {
    pub id: i64,
    /// The queue whose consumer could not apply it.
    pub queue: String,
    pub message_id: Option<String>,
    /// The event that the message claims to be, if that could be read.
    pub event_id: Option<Uuid>,
    pub event_type: Option<String>,
    /// The event's aggregate: an order, a reservation or a payment.
    pub aggregate_id: Option<Uuid>,
    /// How many later events of its aggregate wait behind it: a replay applies them too, in their order.
    pub waiting_behind: i64,
    /// A short, stable name of what was wrong; `behind` if nothing is, and an older event of its aggregate is a dead
    /// letter.
    pub reason: String,
    /// The same as a sentence.
    pub detail: String,
    #[serde(with = "time::serde::rfc3339")]
    pub arrived_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub resolved_at: Option<OffsetDateTime>,
    /// `replayed` or `discarded`; `None` while it waits.
    pub resolution: Option<String>,
    /// Why it was discarded.
    pub note: Option<String>,
    pub routing_key: String,
    /// Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<Json<Box<RawValue>>>,
    /// Not in lists.
    #[serde(flatten)]
    pub body: Option<MessageBody>,
}

/// The original bytes of a message. Serialises as `body` if they are UTF-8, else as `bodyHex`.
#[derive(Debug, sqlx::Type)]
#[sqlx(transparent)]
pub struct MessageBody(pub Vec<u8>);

impl Serialize for MessageBody {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        match std::str::from_utf8(&self.0) {
            Ok(text) => map.serialize_entry("body", text)?,
            Err(_) => map.serialize_entry("bodyHex", &hex(&self.0))?,
        }
        map.end()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Lists dead letters in the order of their arrival, after id `after`: those that wait, or with `resolved_too` all.
pub async fn list(
    pool: &Pool,
    after: i64,
    limit: u8,
    resolved_too: bool,
) -> Result<Page<DeadLetter>, sqlx::Error> {
    let limit = i64::from(limit);
    let items = read(pool, (after, i64::MAX), limit, resolved_too, false).await?;
    Ok(Page { next: next_page(&items, limit, |item| item.id), items })
}

/// Reads one dead letter with its bytes; `None` if there is none with this id.
pub async fn show(pool: &Pool, id: i64) -> Result<Option<DeadLetter>, sqlx::Error> {
    Ok(read(pool, (id.saturating_sub(1), id), 1, true, true).await?.pop())
}

/// Reads dead letters after the first id, up to the last one.
async fn read(
    pool: &Pool,
    (after, last): (i64, i64),
    limit: i64,
    resolved_too: bool,
    with_bytes: bool,
) -> Result<Vec<DeadLetter>, sqlx::Error> {
    sqlx::query_as!(
        DeadLetter,
        r#"select id, queue, message_id, event_id, event_type, subject as aggregate_id, reason, detail, arrived_at, resolved_at, resolution, note,
                  (select count(*) from dead_letters behind
                   where behind.queue = dead_letters.queue and behind.subject = dead_letters.subject
                     and behind.id > dead_letters.id and behind.reason = 'behind' and behind.resolved_at is null
                     and dead_letters.resolved_at is null) as "waiting_behind!",
                  routing_key, case when $5 then headers end as "headers: Json<Box<RawValue>>",
                  case when $5 then body end as "body: MessageBody"
           from dead_letters
           where id > $1 and id <= $2 and (resolved_at is null or $4)
           order by id
           limit $3"#,
        after,
        last,
        limit,
        resolved_too,
        with_bytes,
    )
    .fetch_all(pool)
    .await
}

/// What became of one dead letter in a replay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum ReplayOutcome {
    /// The effect was committed now.
    Applied,
    /// The event had been applied before: nothing changed.
    Unchanged,
    /// In a dry run: its handler would be called, and may still fail.
    WouldBeApplied,
    /// It still cannot be applied, for this reason; it still waits.
    StillFails { reason: &'static str, detail: String },
    /// Refused: older than [`ReplayPolicy::max_age`].
    TooOld { detail: String },
    /// It was discarded before. `force` replays it all the same.
    Discarded,
    /// There is no dead letter with this id.
    NotFound,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayResult {
    pub id: i64,
    pub event_id: Option<Uuid>,
    #[serde(flatten)]
    pub outcome: ReplayOutcome,
}

/// Applies dead letters again, in the order of their arrival, with the service's own handler, and after each the events
/// that wait behind it. The bytes are decoded again, so a service that has learnt a new schema in the meantime can read
/// them, and `processed_events` decides in the transaction of the effect whether it is there already. A dead letter is
/// resolved once it is applied. A dry run changes nothing.
///
/// A crash after the effect and before the dead letter is resolved leaves it waiting; the next replay finds it unchanged.
///
/// # Errors
/// When the database fails. Effects that were committed by then stay.
pub async fn replay(
    table: &DeadLetterTable,
    handler: &SharedHandler,
    selection: &Selection<i64>,
    policy: ReplayPolicy,
) -> Result<Page<ReplayResult>, sqlx::Error> {
    let chosen = sqlx::query!(
        "select id from dead_letters
         where case when $2::bigint[] is null then id > $1 and resolved_at is null else id = any($2) end
           and ($3::timestamptz is null or arrived_at >= $3) and ($4::timestamptz is null or arrived_at < $4)
         order by id
         limit $5",
        selection.after,
        selection.ids.as_deref(),
        selection.from,
        selection.to,
        MAX_REPLAY,
    )
    .fetch_all(&table.pool)
    .await?;
    let mut next = selection.next_page(&chosen, MAX_REPLAY, |letter| letter.id);
    let replay = Replay { table, handler, policy, dry_run: selection.dry_run };
    let mut items: Vec<ReplayResult> = vec![];
    'chosen: for letter in &chosen {
        // With those that wait behind it, as far as the limit allows. The others still wait, in their order.
        let (mut one, mut is_follower) = (Some(letter.id), false);
        while let Some(id) = one.take() {
            if items.iter().any(|item| item.id == id) || (is_follower && items.len() >= MAX_ITEMS) {
                break;
            }
            items.push(replay.one(id, is_follower).await?);
            match items.last().map(|item| &item.outcome) {
                Some(ReplayOutcome::Applied | ReplayOutcome::Unchanged | ReplayOutcome::WouldBeApplied) => {
                    (one, is_follower) = (next_behind(&table.pool, id).await?, true);
                }
                // Each of the others would only wait for the same database.
                Some(ReplayOutcome::StillFails { reason: TEMPORARY, .. }) => {
                    next = None;
                    break 'chosen;
                }
                _ => {}
            }
        }
    }
    let missing = selection.missing(|id| chosen.iter().any(|letter| letter.id == *id));
    let not_found = |id: &i64| ReplayResult { id: *id, event_id: None, outcome: ReplayOutcome::NotFound };
    items.extend(missing.map(not_found));
    Ok(Page { items, next })
}

struct Replay<'a> {
    table: &'a DeadLetterTable,
    handler: &'a SharedHandler,
    policy: ReplayPolicy,
    dry_run: bool,
}

impl Replay<'_> {
    /// Replays one dead letter. `is_follower`: what it waited behind was replayed just now, or would have been.
    async fn one(&self, id: i64, is_follower: bool) -> Result<ReplayResult, sqlx::Error> {
        let row = sqlx::query!(
            r#"select event_id, message_id, headers::text as "headers!", body, reason,
                      coalesce(resolution = 'discarded', false) as "discarded!"
               from dead_letters where id = $1"#,
            id,
        )
        .fetch_one(&self.table.pool)
        .await?;
        // Read here and not with the selection: another operator may have discarded it since the replay began.
        if row.discarded && !self.policy.force {
            return Ok(ReplayResult { id, event_id: row.event_id, outcome: ReplayOutcome::Discarded });
        }
        if row.reason == FORGED && !self.policy.force {
            let detail = "not the event's service has sent it; `force` applies it all the same";
            return Ok(ReplayResult { id, event_id: row.event_id, outcome: still_fails(FORGED, &detail) });
        }
        // Not by the database's `->>`, which fails for a header that holds \u0000.
        let headers: Value = serde_json::from_str(&row.headers).unwrap_or_default();
        let incoming = Incoming {
            message_id: row.message_id.as_deref(),
            traceparent: headers["traceparent"].as_str(),
            body: &row.body,
            ..Incoming::default()
        };
        let outcome = match incoming.decode() {
            Ok(event) => self.event(id, event, is_follower).await?,
            Err(rejection) => still_fails(rejection.reason(), &rejection),
        };
        Ok(ReplayResult { id, event_id: row.event_id, outcome })
    }

    async fn event(&self, id: i64, event: Event, is_follower: bool) -> Result<ReplayOutcome, sqlx::Error> {
        // By the writer's clock: good enough where days are compared with days.
        if OffsetDateTime::now_utc() - event.time > self.policy.max_age && !self.policy.force {
            let detail = format!(
                "the event is older than {} days, and the record that it was applied may be erased: applied again, its \
                 effect could happen twice; `force` applies it all the same",
                self.policy.max_age.as_secs() / 86_400
            );
            return Ok(ReplayOutcome::TooOld { detail });
        }
        let DeadLetterTable { pool, inbox } = self.table;
        if self.dry_run {
            return Ok(match inbox.first_time(pool, slice::from_ref(&event)).await {
                Ok((transaction, new)) => {
                    transaction.rollback().await?;
                    if new.is_empty() { ReplayOutcome::Unchanged } else { ReplayOutcome::WouldBeApplied }
                }
                Err(Error(Failure::Behind(_))) if is_follower => ReplayOutcome::WouldBeApplied,
                Err(Error(failure)) => failed(&failure),
            });
        }
        // In its own task: a client that hangs up does not cancel the transaction, and a panic affects one letter.
        let handler = self.handler.clone();
        let applying =
            tokio::spawn(
                async move { timeout(HANDLER_DEADLINE, handler.apply(slice::from_ref(&event))).await },
            );
        let outcome = match applying.await {
            Ok(Ok(Ok(Applied { first: 0, .. }))) => ReplayOutcome::Unchanged,
            Ok(Ok(Ok(_))) => ReplayOutcome::Applied,
            Ok(Ok(Err(failure))) => return Ok(failed(&failure)),
            Ok(Err(_)) => return Ok(still_fails(TEMPORARY, &"the handler took too long")),
            Err(_) => return Ok(still_fails("unexpected", &"the handler panicked")),
        };
        // In turn with what is saved behind it.
        let mut transaction = inbox.begin(pool).await?;
        sqlx::query!(
            "update dead_letters set resolved_at = clock_timestamp(), resolution = 'replayed'
             where id = $1 and resolution is distinct from 'replayed'",
            id,
        )
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(outcome)
    }
}

/// The next event that waits behind this dead letter, or behind one that waited there itself.
async fn next_behind(pool: &Pool, id: i64) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"select min(behind.id) from dead_letters behind
           join dead_letters one on one.id = $1 and one.queue = behind.queue and one.subject = behind.subject
           where behind.id > $1 and behind.reason = 'behind' and behind.resolved_at is null"#,
        id,
    )
    .fetch_one(pool)
    .await
}

/// Why a replay fails.
fn failed(failure: &Failure) -> ReplayOutcome {
    match failure {
        Failure::Temporary(_) | Failure::TooSlow(_) => still_fails(TEMPORARY, failure),
        Failure::Permanent(_) => still_fails("permanent", failure),
        Failure::Unexpected(_) => still_fails("unexpected", failure),
        Failure::Behind(_) => still_fails("behind", &BEHIND),
    }
}

fn still_fails(reason: &'static str, detail: &impl ToString) -> ReplayOutcome {
    ReplayOutcome::StillFails { reason, detail: detail.to_string() }
}

/// What a call to [`discard`] changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Discard {
    /// These are discarded now. Their bytes are kept.
    pub discarded: Vec<i64>,
    /// These were resolved before, or do not exist.
    pub untouched: Vec<i64>,
}

/// Discards dead letters that wait: they are not applied and do not wait any longer. `note` says why.
pub async fn discard(table: &DeadLetterTable, ids: &[i64], note: &str) -> Result<Discard, sqlx::Error> {
    // In turn with what is saved behind them.
    let mut transaction = table.inbox.begin(&table.pool).await?;
    let discarded = sqlx::query_scalar!(
        "update dead_letters set resolved_at = clock_timestamp(), resolution = 'discarded', note = $2
         where id = any($1) and resolved_at is null
         returning id",
        ids,
        note,
    )
    .fetch_all(&mut *transaction)
    .await?;
    transaction.commit().await?;
    let untouched = ids.iter().copied().filter(|id| !discarded.contains(id)).collect();
    Ok(Discard { discarded, untouched })
}
