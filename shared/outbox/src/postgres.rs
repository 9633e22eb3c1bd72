//! The outbox in PostgreSQL: a lane is a row, and a relay holds a lane by its row lock.
//!
//! A step is two messages to the server: `begin` with the claim, whose text is the function `outbox_claim` in
//! `migrations/outbox/1003_outbox_claim.sql`, and the marks with `commit`.

use std::time::{Duration, SystemTime};

use database::{Pool, Session};
use messaging::{LANES, Outgoing, Refusal};
use sqlx::{AssertSqlSafe, Row as _, postgres::PgRow, raw_sql};
use tokio::time::timeout;

use crate::{
    Error, failed, mark,
    scan_watermark::{Scan, ScanWatermark},
    store::{Claim, ClaimedEvent, Limits, OutboxTransaction, Store},
};

/// How long one message to the server may take, seen from here. The server's own limit is shorter; this one ends the wait for
/// a server that has gone silent.
const STATEMENT_DEADLINE: Duration = Duration::from_secs(12);

async fn within_deadline<T>(statement: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let silent = |late| Error::new("the database does not answer", late);
    timeout(STATEMENT_DEADLINE, statement).await.map_err(silent)?
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
    /// `full_scan` is how often each lane is read from its beginning, and not only after its watermark: the longest that
    /// an event which was committed very late has to wait.
    pub fn new(pool: Pool, full_scan: Duration) -> Self {
        Self { pool, watermark: ScanWatermark::new(full_scan), first_lane: fastrand::i16(0..LANES) }
    }
}

/// An open transaction that has some lanes locked.
///
/// While it is open no other relay can publish events of these lanes. If this process or its connection dies, PostgreSQL
/// rolls back and the lanes are free at once. A process that is frozen instead is cut off by
/// `idle_in_transaction_session_timeout`, and its late marks fail with its session.
///
/// If it is dropped before its commit, its connection is closed: the lanes are free then too.
#[derive(Debug)]
pub struct PostgresTransaction<'store> {
    session: Session,
    scan: Scan<'store>,
}

impl Store for PostgresStore {
    type Transaction<'store> = PostgresTransaction<'store>;

    async fn claim(&mut self, limits: Limits) -> Result<Claim<PostgresTransaction<'_>>, Error> {
        let connecting = async { self.pool.acquire().await.map_err(failed("failed to connect")) };
        let mut session = within_deadline(connecting).await?;
        let mut scan = self.watermark.start_scan();
        // As text: a prepared statement would need a message of its own for `begin`. Only numbers are in it.
        let sql = format!(
            "begin; select * from outbox_claim({}, {}, {}, '{}')",
            self.first_lane,
            limits.lanes,
            limits.batch,
            mark::array(scan.from())
        );
        // Lanes take turns.
        self.first_lane = (self.first_lane + i16::from(limits.lanes)) % LANES;
        let claiming = async {
            let rows = raw_sql(AssertSqlSafe(sql)).fetch_all(&mut *session).await?;
            let events: Result<Vec<_>, _> = rows.iter().filter_map(|row| claimed(row).transpose()).collect();
            let more =
                rows.iter().map(|row| row.try_get::<bool, _>("more")).collect::<Result<Vec<_>, _>>()?;
            Ok((events?, more))
        };
        let claiming = async { claiming.await.map_err(failed("failed to claim events")) };
        let read = |(events, more): &(Vec<ClaimedEvent>, Vec<bool>)| match more.contains(&true) {
            true => events.iter().map(|event| event.lane).collect(),
            false => vec![],
        };
        let (events, more) = scan.time(within_deadline(claiming), read).await?;
        if events.is_empty() {
            let ending = async { session.rollback().await.map_err(failed("failed to end a scan")) };
            within_deadline(ending).await?;
            return Ok(if more.is_empty() { Claim::Idle } else { Claim::Busy });
        }
        scan.claimed(&events);
        let transaction = PostgresTransaction { session, scan };
        Ok(Claim::Events { events, more: more.contains(&true), transaction })
    }
}

impl OutboxTransaction for PostgresTransaction<'_> {
    async fn try_write(&mut self, event: &ClaimedEvent) -> Result<(), Error> {
        within_deadline(mark::try_write(&mut self.session, event.seq)).await
    }

    async fn mark_refused(&mut self, refused: &[(ClaimedEvent, Refusal)]) -> Result<(), Error> {
        self.scan.refused();
        within_deadline(mark::mark_refused(&mut self.session, refused)).await
    }

    async fn commit(self, confirmed: &[ClaimedEvent]) -> Result<(), Error> {
        within_deadline(mark::mark_published_and_commit(self.session, confirmed)).await?;
        self.scan.committed(confirmed.iter().map(|event| event.seq));
        Ok(())
    }
}

/// An event of a claim. `None`: the row says only that others hold what is claimable.
fn claimed(row: &PgRow) -> Result<Option<ClaimedEvent>, sqlx::Error> {
    let Some(seq) = row.try_get("seq")? else { return Ok(None) };
    // Times before 1970 would be negative, and nothing depends on them.
    let created_at = Duration::try_from_secs_f64(row.try_get("created_at")?).unwrap_or_default();
    Ok(Some(ClaimedEvent {
        seq,
        lane: row.try_get("lane")?,
        aggregate_id: row.try_get("aggregate_id")?,
        created_at: SystemTime::UNIX_EPOCH + created_at,
        refused_before: row.try_get("refused_before")?,
        message: Outgoing {
            id: row.try_get("event_id")?,
            event_type: row.try_get("event_type")?,
            body: row.try_get::<String, _>("payload")?.into_bytes(),
            traceparent: row.try_get("traceparent")?,
        },
    }))
}
