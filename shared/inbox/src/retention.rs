//! What was processed is forgotten after a while: later than the last moment at which a copy of it can arrive.
//!
//! The walk goes along the primary key. Event ids are UUIDv7, made when the event happened, so the key is almost the
//! order of processing already, and no further index has to be paid for by each event. Ids only decide where the walk
//! ends: whether a record goes is decided by `processed_at`, which is this database's own clock.

use std::time::Duration;

use faults::Sabotage;
use sqlx::PgPool;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// How often a round is made.
const EVERY: Duration = Duration::from_secs(60);

/// Between two windows, so that the consumer does not notice.
const PAUSE: Duration = Duration::from_millis(20);

/// A round ends after this many windows, a million rows. The next one goes on from there.
const LONGEST_ROUND: u32 = 1000;

/// A statement that takes longer is given up: the next round tries again.
const PATIENCE: Duration = Duration::from_secs(15);

/// Erases a consumer's memory of events that it processed long ago.
#[derive(Debug)]
pub struct Retention {
    pool: PgPool,
    consumer: &'static str,
    remember: Duration,
    /// Behind this id the next round begins: there the young records do.
    from: Uuid,
}

/// What a round came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Round {
    /// Records that are gone. A copy of one of these events would be applied again.
    pub forgotten: u64,
    /// Statements that it took.
    pub windows: u32,
}

/// What was found in one window.
struct Window {
    last: Option<Uuid>,
    forgotten: i64,
    some_are_young: bool,
    full: bool,
}

impl Retention {
    /// For a consumer of the pool's schema. `remember` has to be longer than the longest time after which an event can
    /// be published again.
    pub fn new(pool: PgPool, consumer: &'static str, remember: Duration) -> Self {
        Self { pool, consumer, remember, from: Uuid::nil() }
    }

    /// Erases what is due, window by window, and ends where everything is too young, or when another instance is at it.
    ///
    /// # Errors
    /// When the database fails. What was forgotten by then stays forgotten.
    pub async fn round(&mut self) -> Result<Round, sqlx::Error> {
        let first = sqlx::query!(
            "insert into inbox_retention (consumer) values ($1) on conflict do nothing",
            self.consumer
        );
        timeout(PATIENCE, first.execute(&self.pool)).await.map_err(|_| sqlx::Error::PoolTimedOut)??;
        let mut round = Round::default();
        let (mut behind, mut young_since) = (self.from, None);
        while round.windows < LONGEST_ROUND {
            let window = timeout(PATIENCE, forget(&self.pool, self.consumer, behind, self.remember)).await;
            let Some(window) = window.map_err(|_| sqlx::Error::PoolTimedOut)?? else { return Ok(round) };
            round.windows += 1;
            round.forgotten += u64::try_from(window.forgotten).unwrap_or(0);
            metrics::counter!("inbox_forgotten_total")
                .increment(u64::try_from(window.forgotten).unwrap_or(0));
            if window.some_are_young {
                young_since = young_since.or(Some(behind));
            }
            let too_young = window.forgotten == 0 && window.some_are_young;
            let (true, false, Some(last)) = (window.full, too_young, window.last) else { break };
            behind = last;
            sleep(PAUSE).await;
        }
        self.from = young_since.unwrap_or(behind);
        Ok(round)
    }

    /// A round every minute, until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut every = EVERY;
        if faults::sabotaged(Sabotage::ShortMemory) {
            (self.remember, every) = (Duration::ZERO, Duration::from_secs(1));
        }
        let rounds = async {
            loop {
                match self.round().await {
                    Ok(Round { forgotten: 0, .. }) => {}
                    Ok(Round { forgotten, windows }) => {
                        tracing::info!(forgotten, windows, "forgot events that were processed long ago");
                    }
                    Err(error) => {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "nothing is forgotten for now"
                        );
                    }
                }
                sleep(every).await;
            }
        };
        stop.run_until_cancelled(rounds).await;
    }
}

/// Erases what is due among the thousand records behind an id. `None`: another instance is erasing at this moment.
///
/// One statement that commits by itself, so it may be cancelled at any moment; the limit is a literal, because the plan
/// depends on it. What was forgotten is written down with it: `demo verify` has to know.
async fn forget(
    pool: &PgPool,
    consumer: &str,
    behind: Uuid,
    remember: Duration,
) -> Result<Option<Window>, sqlx::Error> {
    sqlx::query_as!(
        Window,
        r#"with turn as (
               select clock_timestamp() - $3::float8 * interval '1 second' as cutoff
               from inbox_retention where consumer = $1 for update skip locked
           ), bite as materialized (
               select event_id, processed_at from processed_events
               where consumer = $1 and event_id > $2 and exists (select from turn) order by event_id limit 1000
           ), gone as (
               delete from processed_events using turn
               where processed_events.consumer = $1 and processed_events.event_id > $2
                 and processed_events.event_id <= (select event_id from bite order by event_id desc limit 1)
                 and processed_events.processed_at < turn.cutoff
               returning 1
           ), counted as (
               select count(*) as forgotten from gone
           ), written as (
               update inbox_retention
               set forgotten_before = greatest(forgotten_before, turn.cutoff),
                   forgotten = inbox_retention.forgotten + counted.forgotten
               from turn, counted where consumer = $1 and counted.forgotten > 0
           )
           select (select event_id from bite order by event_id desc limit 1) as last,
                  counted.forgotten as "forgotten!",
                  exists (select from bite where processed_at >= turn.cutoff) as "some_are_young!",
                  (select count(*) = 1000 from bite) as "full!"
           from turn, counted"#,
        consumer,
        behind,
        remember.as_secs_f64(),
    )
    .fetch_optional(pool)
    .await
}
