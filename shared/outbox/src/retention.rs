//! Published events leave the outbox after a while. What is still owed never does, however old it is.
//!
//! The walk goes along the primary key, from the lowest `seq`, one window of a thousand rows at a time. An index on
//! `published_at` would find the rows too, and every mark would have to pay for it; `seq` is almost the order of
//! publishing already, and its index is there. Each window is one statement that commits by itself, with a pause after
//! it: locks, replication and vacuum see small bites. `docs/retention.md` has the measurements.

use std::time::Duration;

use sqlx::PgPool;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{Error, failed};

/// How often a round is made.
const EVERY: Duration = Duration::from_secs(60);

/// Between two windows, so that whoever writes orders does not notice.
const PAUSE: Duration = Duration::from_millis(20);

/// A round ends after this many windows, a million rows. The next one goes on from there.
const LONGEST_ROUND: u32 = 1000;

/// A statement that takes longer is given up: the next round tries again.
const PATIENCE: Duration = Duration::from_secs(15);

/// How often a round begins at the very beginning. Rounds in between begin where young rows do, so that events which
/// stay (parked ones) are not walked over every minute; once they are published at last, this round finds them.
const FROM_THE_BEGINNING: Duration = Duration::from_secs(24 * 3600);

/// Erases published events that are older than a certain age.
#[derive(Debug)]
pub struct Retention {
    pool: PgPool,
    keep: Duration,
    /// Behind this `seq` the next round begins.
    from: i64,
    began: Instant,
}

/// What a round came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Round {
    /// Events that are gone.
    pub erased: u64,
    /// Statements that it took.
    pub windows: u32,
}

/// What was found in one window.
struct Window {
    last: Option<i64>,
    erased: i64,
    some_are_young: bool,
    more: bool,
}

impl Retention {
    /// For the outbox in the pool's schema. `keep` is counted from the moment of publishing, by the database's clock.
    pub fn new(pool: PgPool, keep: Duration) -> Self {
        Self { pool, keep, from: 0, began: Instant::now() }
    }

    /// Erases what is due, window by window, and ends where everything is too young, or when another instance is at it.
    ///
    /// # Errors
    /// When the database fails. What was erased by then stays erased.
    pub async fn round(&mut self) -> Result<Round, Error> {
        if self.began.elapsed() > FROM_THE_BEGINNING {
            (self.from, self.began) = (0, Instant::now());
        }
        let mut round = Round::default();
        let (mut behind, mut young_since) = (self.from, None);
        while round.windows < LONGEST_ROUND {
            let window = timeout(PATIENCE, erase(&self.pool, behind, self.keep)).await;
            let Some(window) = window.map_err(|slow| Error::new("erasing took too long", slow))?? else {
                return Ok(round);
            };
            round.windows += 1;
            round.erased += u64::try_from(window.erased).unwrap_or(0);
            metrics::counter!("outbox_erased_total").increment(u64::try_from(window.erased).unwrap_or(0));
            if window.some_are_young {
                young_since = young_since.or(Some(behind));
            }
            // A window of which nothing went, because it is too young, has nothing older behind it, but for events
            // that had to wait for long. Those can stay until it is their window's turn.
            let too_young = window.erased == 0 && window.some_are_young;
            let (true, false, Some(last)) = (window.more, too_young, window.last) else { break };
            behind = last;
            sleep(PAUSE).await;
        }
        self.from = young_since.unwrap_or(behind);
        Ok(round)
    }

    /// A round every minute, until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let rounds = async {
            loop {
                match self.round().await {
                    Ok(Round { erased: 0, .. }) => {}
                    Ok(Round { erased, windows }) => {
                        tracing::info!(erased, windows, "erased published events");
                    }
                    Err(error) => {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "published events stay for now"
                        );
                    }
                }
                sleep(EVERY).await;
            }
        };
        stop.run_until_cancelled(rounds).await;
    }
}

/// Erases what is due among the thousand rows behind `seq`. `None`: another instance is erasing at this moment.
///
/// `published_at < cutoff` is never true for an event that is owed, backing off or parked, however old it is, and it
/// stands in the `delete` itself: should an operator take a mark back at this very moment, PostgreSQL asks again after
/// waiting for them. One statement, cancellable at any moment; the limit is a literal, because the plan depends on it.
async fn erase(pool: &PgPool, behind: i64, keep: Duration) -> Result<Option<Window>, Error> {
    let row = sqlx::query!(
        r#"with turn as (
               select clock_timestamp() - $2::float8 * interval '1 second' as cutoff
               from outbox_retention for update skip locked
           ), bite as materialized (
               select seq, created_at, published_at from outbox
               where seq > $1 and exists (select from turn) order by seq limit 1000
           ), gone as (
               delete from outbox using turn
               where outbox.seq > $1 and outbox.seq <= (select max(seq) from bite)
                 and outbox.published_at < turn.cutoff
               returning 1
           ), counted as (
               select count(*) as erased from gone
           ), written as (
               update outbox_retention
               set erased_before = greatest(erased_before, turn.cutoff), erased = outbox_retention.erased + counted.erased
               from turn, counted where counted.erased > 0
           )
           select (select max(seq) from bite) as last,
                  counted.erased as "erased!",
                  exists (select from bite where published_at >= turn.cutoff) as "some_are_young!",
                  -- Nothing was published before it was written: behind an event that is itself too young, all are.
                  (select count(*) = 1000 from bite)
                      and (select created_at from bite order by seq desc limit 1) < turn.cutoff as "more!"
           from turn, counted"#,
        behind,
        keep.as_secs_f64(),
    )
    .fetch_optional(pool)
    .await
    .map_err(failed("cannot erase published events"))?;
    Ok(row.map(|row| Window {
        last: row.last,
        erased: row.erased,
        some_are_young: row.some_are_young,
        more: row.more,
    }))
}
