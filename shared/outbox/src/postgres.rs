//! The outbox in PostgreSQL: a lane is a row, and a relay holds a lane by its row lock.
//!
//! A step is two messages to the server: `begin` with the claim, whose text is the function `outbox_claim` in
//! `migrations/outbox/1003_outbox_claim.sql`, and the marks with `commit`.
//!
//! It depends on settings of the session (`shared/database/src/session_settings.rs`, `PoolKind::AsyncCommit`): read committed, a
//! generic plan for the claim, and commits that do not wait for the disk. If PostgreSQL crashes, the last marks may be lost;
//! their events are published again, and consumers drop the copies.

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use database::{Fault, Pool, Session};
use events::LANES;
use futures_util::future::BoxFuture;
use messaging::{
    Claim, ClaimedEvent, Error, MAX_NACKED_ATTEMPTS, OutboxTransaction, Outgoing, Publisher, RETRY_SECONDS,
    Refusal, Relay, RelayOptions, Store,
};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _, postgres::PgRow, raw_sql};
use uuid::Uuid;

use crate::{
    gauges::HeldLanes,
    scan_watermark::{Scan, ScanWatermark},
};

/// How long one message may take, seen from here. The server's own limit is shorter; this one ends the wait for a
/// silent server.
const STATEMENT_DEADLINE: Duration = Duration::from_secs(12);

/// Waits for a message to the server. `what` says what failed, if it fails: `failed to <verb> <object>`.
pub(crate) async fn within_deadline<T>(
    what: &'static str,
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Error> {
    database::within_deadline(STATEMENT_DEADLINE, statement).await.map_err(|error| Error::new(what, error))
}

/// Whether one row may be to blame.
fn may_be_of_a_row(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref());
    cause.is_some_and(|cause| Fault::of(cause).may_be_of_a_row())
}

/// A relay over the outbox in the pool's schema.
pub fn relay<P: Publisher>(pool: Pool, publisher: P, options: RelayOptions) -> Relay<P, PostgresStore> {
    Relay::new(PostgresStore::new(pool, options.full_scan), publisher, options)
}

/// The outbox in the pool's schema.
#[derive(Debug)]
pub struct PostgresStore {
    pool: Pool,
    watermark: ScanWatermark,
    /// The lane at which the next claim begins its search.
    first_lane: i16,
}

impl PostgresStore {
    /// `full_scan` is how often each lane is read from its beginning, and not only after its watermark.
    pub fn new(pool: Pool, full_scan: Duration) -> Self {
        Self { pool, watermark: ScanWatermark::new(full_scan), first_lane: fastrand::i16(0..LANES) }
    }
}

/// An open transaction that has some lanes locked: no other relay can publish their events.
///
/// If it is dropped before its commit, or its process or connection dies, PostgreSQL rolls back and the lanes are free. A
/// frozen process is cut off by `idle_in_transaction_session_timeout`, and its late marks fail with its session.
#[derive(Debug)]
pub struct PostgresTransaction<'store> {
    session: Session,
    scan: Scan<'store>,
    held: HeldLanes,
}

impl Store for PostgresStore {
    type Transaction<'store> = PostgresTransaction<'store>;

    async fn claim(&mut self, lanes: u8, batch: u16) -> Result<Claim<PostgresTransaction<'_>>, Error> {
        let mut session =
            within_deadline("failed to connect", async { self.pool.for_writing()?.acquire().await }).await?;
        let mut scan = self.watermark.start_scan();
        // As text: a prepared statement would need its own message for `begin`. Only numbers are in it.
        let (first_lane, scan_from) = (self.first_lane, array(scan.from));
        let sql = format!(
            "begin; select *, current_setting('synchronous_standby_names') <> '' as has_standby
             from outbox_claim({first_lane}, {lanes}, {batch}, '{scan_from}')"
        );
        // Lanes take turns.
        self.first_lane = (first_lane + i16::from(lanes)) % LANES;
        let claiming = async {
            let rows = raw_sql(AssertSqlSafe(sql)).fetch_all(&mut *session).await?;
            let more = rows.iter().map(|row| row.try_get("more")).collect::<Result<Vec<bool>, _>>()?;
            let has_standby = rows.first().map_or(Ok(false), |row| row.try_get("has_standby"))?;
            let events = rows
                .iter()
                .filter_map(|row| claimed_event(row).transpose())
                .collect::<Result<Vec<_>, _>>()?;
            Ok((events, more.contains(&true), has_standby))
        };
        let claimed = within_deadline("failed to claim events", claiming).await;
        let (events, more, has_standby) = match claimed {
            Ok(claimed) => claimed,
            Err(error) => {
                scan.ended(&[], false);
                if may_be_of_a_row(&error) {
                    drop(session);
                    hold_back_unreadable(&self.pool, batch).await?;
                }
                return Err(error);
            }
        };
        scan.ended(&events, more);
        if events.is_empty() {
            within_deadline("failed to end a scan", session.rollback()).await?;
            return Ok(if more { Claim::Busy } else { Claim::Idle });
        }
        // In another transaction, because this one keeps the locks. If a commit's wait for the standby was cancelled, its event is
        // visible here, and gone once the standby takes over: published, it would be a phantom.
        if has_standby {
            await_standby(&self.pool, &mut session).await?;
        }
        let held = HeldLanes::new(&events);
        Ok(Claim::Events { events, more, transaction: PostgresTransaction { session, scan, held } })
    }
}

impl OutboxTransaction for PostgresTransaction<'_> {
    async fn try_write(&mut self, events: &[ClaimedEvent]) -> Result<(), Error> {
        try_write(&mut self.session, events).await
    }

    async fn mark_refused(&mut self, refused: &[(ClaimedEvent, Refusal)]) -> Result<(), Error> {
        self.scan.refused();
        mark_refused(&mut self.session, refused).await
    }

    async fn commit(self, confirmed: &[ClaimedEvent]) -> Result<(), Error> {
        mark_published_and_commit(self.session, confirmed).await?;
        self.scan.committed(confirmed.iter().map(|event| event.seq));
        self.held.published(confirmed);
        Ok(())
    }
}

/// Waits until the synchronous standby has what a claim has read, and keeps the claim's session.
pub(crate) async fn await_standby(pool: &Pool, session: &mut Session) -> Result<(), Error> {
    within_deadline("failed to wait for the standby", pool.await_replication()).await?;
    // The server ends a session that is idle in its transaction: the time of this wait does not count any more.
    within_deadline("failed to keep the claim's session", session.ping()).await
}

/// An event of a claim. `None`: the row says only that others hold what is claimable.
pub fn claimed_event(row: &PgRow) -> Result<Option<ClaimedEvent>, sqlx::Error> {
    let Some(seq) = row.try_get("seq")? else { return Ok(None) };
    // Times before 1970 would be negative, and nothing depends on them.
    let created_at = Duration::try_from_secs_f64(row.try_get("created_at")?).unwrap_or_default();
    Ok(Some(ClaimedEvent {
        seq,
        aggregate_id: row.try_get("aggregate_id")?,
        created_at: SystemTime::UNIX_EPOCH + created_at,
        refused_before: row.try_get("refused_before")?,
        message: Outgoing {
            id: row.try_get("event_id")?,
            event_type: row.try_get("event_type")?,
            lane: row.try_get("lane")?,
            body: row.try_get::<String, _>("payload")?.into_bytes(),
            traceparent: row.try_get("traceparent")?,
        },
    }))
}

/// Marks events that the broker has confirmed, and commits, in one message to the server. If the marks fail, PostgreSQL
/// skips the commit; if a row may be to blame, they are then made in parts. `published_at is null`: the mark of an operator who
/// changed the row in the meantime stands.
pub async fn mark_published_and_commit(
    mut session: Session,
    confirmed: &[ClaimedEvent],
) -> Result<(), Error> {
    let what = "failed to mark events as published";
    let at_once = format!("savepoint marks; {}; commit", marks(confirmed));
    let marked = match within_deadline(what, mark(&mut session, at_once)).await {
        Err(error) if may_be_of_a_row(&error) => {
            let in_parts = async {
                raw_sql("rollback to savepoint marks").execute(&mut *session).await?;
                let write: Write<'_, _, _> = &|session, part| Box::pin(mark(session, marks(part)));
                let marked =
                    in_parts(&mut session, confirmed, |event| (event.seq, event.aggregate_id), write).await?;
                raw_sql("commit").execute(&mut *session).await?;
                Ok(marked)
            };
            within_deadline(what, in_parts).await?
        }
        marked => marked?,
    };
    session.finish();
    for (event_type, waited) in marked {
        metrics::counter!("outbox_published_total", "event_type" => event_type).increment(1);
        metrics::histogram!("outbox_commit_to_publish_seconds").record(waited);
    }
    Ok(())
}

/// The statement that marks events as published. Only numbers are in it.
fn marks(events: &[ClaimedEvent]) -> String {
    format!(
        "update outbox set published_at = clock_timestamp()
         where seq = any('{}') and published_at is null
         returning event_type, extract(epoch from published_at - created_at)::double precision as waited",
        array(events.iter().map(|event| event.seq)),
    )
}

/// Runs marks. Returns the type of each event, and how long it waited.
async fn mark(session: &mut PgConnection, sql: String) -> Result<Vec<(String, f64)>, sqlx::Error> {
    let rows = raw_sql(AssertSqlSafe(sql)).fetch_all(session).await?;
    rows.iter().map(|row| Ok((row.try_get("event_type")?, row.try_get("waited")?))).collect()
}

/// Writes to some events, in a statement that fails as a whole if one of their rows cannot be written.
type Write<'w, E, R> =
    &'w (dyn for<'s> Fn(&'s mut PgConnection, &'s [E]) -> BoxFuture<'s, Result<Vec<R>, sqlx::Error>> + Sync);

/// After so many events that failed alike, and none that could be written, no further one is tried.
const FAILED_ALIKE: usize = 8;

/// Writes to events, and halves a part that fails because of a row until that row is alone. Its event is held back, and not
/// marked: without this it would have its whole batch published again and again.
///
/// If events of several aggregates fail alike and none can be written, no row is to blame, but for example a trigger that refuses
/// every mark. That is an error, and none is held back: the whole outbox would be parked in the end.
async fn in_parts<E: Sync, R: Send>(
    session: &mut PgConnection,
    events: &[E],
    key: impl Fn(&E) -> (i64, Uuid) + Send,
    write: Write<'_, E, R>,
) -> Result<Vec<R>, sqlx::Error> {
    let (mut parts, mut written, mut any_succeeded) = (vec![events], vec![], false);
    let (mut failed, mut aggregates, mut codes) = (vec![], HashSet::new(), HashSet::new());
    let code = |error: &sqlx::Error| Some(error.as_database_error()?.code()?.into_owned());
    while let Some(part) = parts.pop() {
        raw_sql("savepoint part").execute(&mut *session).await?;
        match write(&mut *session, part).await {
            Ok(rows) => {
                raw_sql("release savepoint part").execute(&mut *session).await?;
                written.extend(rows);
                any_succeeded = true;
            }
            Err(error) if Fault::of(&error).may_be_of_a_row() => {
                raw_sql("rollback to savepoint part").execute(&mut *session).await?;
                let [event] = part else {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                    continue;
                };
                let (seq, aggregate) = key(event);
                aggregates.insert(aggregate);
                codes.insert(code(&error));
                failed.push((seq, error.to_string()));
                let is_last = parts.is_empty() || failed.len() >= FAILED_ALIKE;
                if is_last && !any_succeeded && aggregates.len() > 1 && codes.len() == 1 {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
    for (seq, why) in failed {
        hold_back(session, seq, &why).await?;
    }
    Ok(written)
}

/// Holds an event back whose row cannot be written: it is tried again alone, after growing waits.
async fn hold_back(session: &mut PgConnection, seq: i64, why: &str) -> Result<(), sqlx::Error> {
    let held = sqlx::query!(
        r#"select event_id as "event_id!", event_type as "event_type!", aggregate_id as "aggregate_id!",
                  attempts as "attempts!", parked as "parked!"
           from outbox_hold_back($1, $2, $3)"#,
        seq,
        why,
        &RETRY_SECONDS[..],
    );
    for row in held.fetch_all(session).await? {
        let (event_id, event_type, aggregate_id) = (row.event_id, row.event_type, row.aggregate_id);
        tracing::error!(
            %event_id, event_type, %aggregate_id, seq, why, attempt = row.attempts, parked = row.parked,
            "event held back: its row cannot be written"
        );
        metrics::counter!("outbox_failed_total", "event_type" => event_type, "reason" => "row").increment(1);
    }
    Ok(())
}

/// Holds back what cannot be read among the first events of each lane, after a claim failed. The next one is without them.
async fn hold_back_unreadable(pool: &Pool, batch: u16) -> Result<(), Error> {
    let searching =
        sqlx::query!("select outbox_hold_back_unreadable($1, $2)", i32::from(batch), &RETRY_SECONDS[..],);
    let searching = async { searching.execute(pool.for_writing()?).await };
    within_deadline("failed to search for an event that cannot be read", searching).await?;
    tracing::error!("a claim failed; events that cannot be read are held back in outbox_held_back");
    Ok(())
}

/// An array of numbers or UUIDs as PostgreSQL reads it.
pub(crate) fn array(values: impl IntoIterator<Item = impl ToString>) -> String {
    let values: Vec<_> = values.into_iter().map(|value| value.to_string()).collect();
    format!("{{{}}}", values.join(","))
}

/// Writes an event of each of two aggregates as it is, to the columns that a mark writes. One that is to blame itself is held
/// back, which is a write too.
pub async fn try_write(transaction: &mut PgConnection, events: &[ClaimedEvent]) -> Result<(), Error> {
    let write: Write<'_, _, _> = &|session, part: &[(i64, Uuid)]| {
        Box::pin(async move {
            let seqs: Vec<_> = part.iter().map(|(seq, _)| *seq).collect();
            let writing =
                sqlx::query!("update outbox set published_at = published_at where seq = any($1)", &seqs);
            writing.execute(session).await.map(|_| Vec::<()>::new())
        })
    };
    let first = events.first();
    let other =
        events.iter().find(|event| first.is_some_and(|first| first.aggregate_id != event.aggregate_id));
    let tried: Vec<_> = first.into_iter().chain(other).map(|event| (event.seq, event.aggregate_id)).collect();
    let writing = in_parts(transaction, &tried, |key| *key, write);
    within_deadline("failed to write to the outbox after failed marks", writing).await.map(drop)
}

/// Records which events the broker refused: when to try each again, or, at the end of the schedule, that it is parked. An
/// event that only queues refuse is never parked: it needs no more than room in the queue, and no operator.
///
/// One statement for all: a full queue refuses hundreds at once. One by one, over a link to the database that takes 0.7
/// s there and back, the lanes were locked for five minutes.
pub async fn mark_refused(
    transaction: &mut PgConnection,
    refused: &[(ClaimedEvent, Refusal)],
) -> Result<(), Error> {
    let write: Write<'_, _, _> = &|session, part| Box::pin(mark_part_refused(session, part));
    let marking = in_parts(transaction, refused, |(event, _)| (event.seq, event.aggregate_id), write);
    let rows = within_deadline("failed to record refused events", marking).await?;
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

/// An event that was recorded as refused.
struct Refused {
    event_id: Uuid,
    event_type: String,
    aggregate_id: Uuid,
    attempts: i16,
    reason: String,
    parked: bool,
}

async fn mark_part_refused(
    session: &mut PgConnection,
    refused: &[(ClaimedEvent, Refusal)],
) -> Result<Vec<Refused>, sqlx::Error> {
    let seqs: Vec<_> = refused.iter().map(|(event, _)| event.seq).collect();
    let reasons: Vec<_> = refused.iter().map(|(_, refusal)| refusal.to_string()).collect();
    let may_be_final: Vec<_> = refused.iter().map(|(_, refusal)| refusal.may_be_final()).collect();
    // Each refusal counts as an attempt. Those that are about a queue count up to `$5`: they park no event, and lower no count.
    // The wait is drawn from zero to the limit of this attempt. Arrays begin at 1.
    sqlx::query_as!(
        Refused,
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
    .fetch_all(session)
    .await
}
