use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{Fault, Pool, within_deadline};

/// How often a round begins.
const ROUND_INTERVAL: Duration = Duration::from_secs(60);

/// The pause after each window, so that retention does not slow the service down.
const WINDOW_PAUSE: Duration = Duration::from_millis(20);

/// The most windows of one round: a million rows. The next round continues there.
const MAX_WINDOWS: u32 = 1000;

/// How long one window may take. The next round tries again.
const WINDOW_DEADLINE: Duration = Duration::from_secs(15);

/// The rows of one window, unless one of them cannot be erased.
const WINDOW_ROWS: i64 = 1000;

/// What one window contained.
pub struct Window<K> {
    /// The last key of the window, where the next one begins; `None` if it was empty.
    pub last: Option<K>,
    pub erased: i64,
    /// Whether rows remain that will be old enough later.
    pub some_are_young: bool,
    /// Whether it has as many rows as were asked for, so that others may be behind it.
    pub is_full: bool,
    /// Whether rows behind this window may be old enough.
    pub more: bool,
}

/// Erases one window of old rows: a statement that commits by itself and may be cancelled at any moment.
pub trait Erase: Send + Sync {
    /// The key that the walk follows.
    type Key: Copy + Send;
    /// Below every key.
    const FIRST_KEY: Self::Key;

    /// Erases what is old among so many rows after a key, at most a thousand. `None`: another instance is erasing at this moment.
    fn erase_window(
        &self,
        pool: &Pool,
        after: Self::Key,
        rows: i64,
    ) -> impl Future<Output = Result<Option<Window<Self::Key>>, sqlx::Error>> + Send;

    /// The next key: where to go on if its row cannot be erased. `None`: that is not known.
    fn next_key(
        &self,
        _pool: &Pool,
        _after: Self::Key,
    ) -> impl Future<Output = Result<Option<Self::Key>, sqlx::Error>> + Send {
        std::future::ready(Ok(None))
    }

    /// Where to continue the walk over the whole table; `None` if the last one was completed less than a day ago. The other
    /// rounds read from the first young row to where all are too young. This one finds what has become old elsewhere: keys
    /// need not have the order of age, as ids from another source. A table has its progress, for services that restart daily.
    fn full_walk(&self, _pool: &Pool) -> impl Future<Output = Result<Option<Self::Key>, sqlx::Error>> + Send {
        std::future::ready(Ok(None))
    }

    /// Saves where the next round continues the full walk; `None` means that it is complete.
    fn save_full_walk(
        &self,
        _pool: &Pool,
        _after: Option<Self::Key>,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        std::future::ready(Ok(()))
    }
}

/// Erases old rows of a table, window by window: locks, replication and vacuum see small deletes.
pub struct Retention<E: Erase> {
    table: &'static str,
    pool: Pool,
    erase: E,
    /// After this key the next round begins.
    next: E::Key,
    clock: ClockWatch,
}

/// The outcome of a round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Round {
    pub erased: u64,
    pub windows: u32,
}

impl<E: Erase> Retention<E> {
    /// `table` is the label of `retention_erased_total`; the time comes from `pool`.
    pub fn new(table: &'static str, pool: Pool, erase: E) -> Self {
        Self { table, pool, erase, next: E::FIRST_KEY, clock: ClockWatch::default() }
    }

    /// Erases window by window, and ends where all rows are too young, or when another instance is erasing. Once a day it
    /// walks over the whole table instead, a part in each round.
    ///
    /// It erases nothing while the database's clock is suspect: a clock that is a month ahead for a minute would make
    /// everything old. When the database fails, rows that were erased by then stay erased.
    pub async fn round(&mut self) -> Result<Round, sqlx::Error> {
        let full_walk = within_deadline(WINDOW_DEADLINE, self.erase.full_walk(&self.pool)).await?;
        let mut round = Round::default();
        let (mut after, mut young_since) = (full_walk.unwrap_or(self.next), None);
        let (mut is_complete, mut rows) = (false, WINDOW_ROWS);
        while round.windows < MAX_WINDOWS {
            // Before each window: a round may take minutes. A window locks rows, so its commit waits for a standby too.
            self.pool.for_writing()?;
            if !self.clock.is_steady(database_time(&self.pool).await?) {
                tracing::warn!(
                    table = self.table,
                    "the database's clock was set; nothing is erased until it is steady"
                );
                return Ok(round);
            }
            let erasing = self.erase.erase_window(&self.pool, after, rows);
            let window = match within_deadline(WINDOW_DEADLINE, erasing).await {
                // A window is as good as its worst row: halve it until that one is alone, and step over it.
                Err(error) if Fault::of(&error).may_be_of_a_row() => {
                    if rows == 1 {
                        let next = self.erase.next_key(&self.pool, after);
                        after = within_deadline(WINDOW_DEADLINE, next).await?.ok_or(error)?;
                        tracing::warn!(table = self.table, "a row cannot be erased; it stays");
                    }
                    rows = (rows / 2).max(1);
                    round.windows += 1;
                    continue;
                }
                window => window?,
            };
            let Some(window) = window else { return Ok(round) };
            rows = (rows * 2).min(WINDOW_ROWS);
            let erased = u64::try_from(window.erased).unwrap_or(0);
            round.windows += 1;
            round.erased += erased;
            metrics::counter!("retention_erased_total", "table" => self.table).increment(erased);
            if window.some_are_young {
                young_since = young_since.or(Some(after));
            }
            // Rows behind a window that is too young as a whole are younger still, except a few that waited for long, or
            // that have keys of another source. Those stay until the next full walk, which no date ends.
            let too_young =
                full_walk.is_none() && (!window.more || window.erased == 0 && window.some_are_young);
            let (true, false, Some(last)) = (window.is_full, too_young, window.last) else {
                is_complete = true;
                break;
            };
            after = last;
            sleep(WINDOW_PAUSE).await;
        }
        if full_walk.is_some() {
            let next = (!is_complete).then_some(after);
            within_deadline(WINDOW_DEADLINE, self.erase.save_full_walk(&self.pool, next)).await?;
        } else {
            self.next = young_since.unwrap_or(after);
        }
        Ok(round)
    }

    /// Makes a round every minute, until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let rounds = async {
            loop {
                match self.round().await {
                    Ok(Round { erased: 0, .. }) => {}
                    Ok(Round { erased, windows }) => {
                        tracing::info!(table = self.table, erased, windows, "erased old rows");
                    }
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(
                            table = self.table,
                            error,
                            "failed to erase old rows; the next round retries"
                        );
                    }
                }
                sleep(ROUND_INTERVAL).await;
            }
        };
        stop.run_until_cancelled(rounds).await;
    }
}

/// How far the database's clock may move against this process's monotonic one between two looks.
const MAX_DEVIATION: Duration = Duration::from_secs(300);

/// After this long a clock that was set is taken to be right: an operator has corrected it.
const ACCEPTED_AFTER: Duration = Duration::from_secs(3600);

/// How long the database may take to tell the time.
const TIME_DEADLINE: Duration = Duration::from_secs(10);

/// Notices that the database's clock was set, by this process's monotonic clock, which cannot be set. Optional. Without it: a
/// database clock that jumps a month ahead for a minute has everything erased as old.
///
/// What is erased or given up because it is old is gone for good; a clock that is wrong for a minute must not decide it. At the
/// first look there is no earlier one: both clocks must show the same time, however long that takes. A restart would else make
/// a wrong clock the right one.
#[derive(Debug, Default)]
pub struct ClockWatch {
    /// The time of the database, and of this process, at the last look that was steady.
    last: Option<(Duration, Instant)>,
    /// Since when the clock has been another one.
    set_since: Option<Instant>,
}

impl ClockWatch {
    /// Whether the database's clock has gone as fast as this process's since the last look, or at the first one shows the same
    /// time. `now` is the database's time since 1970.
    pub fn is_steady(&mut self, now: Duration) -> bool {
        let own = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.agrees(now, own)
    }

    fn agrees(&mut self, now: Duration, own: Duration) -> bool {
        let expected = self.last.map_or(own, |(then, looked_at)| then.saturating_add(looked_at.elapsed()));
        if now.abs_diff(expected) <= MAX_DEVIATION {
            self.set_since = None;
        } else if self.last.is_none()
            || self.set_since.get_or_insert_with(Instant::now).elapsed() < ACCEPTED_AFTER
        {
            return false;
        }
        self.last = Some((now, Instant::now()));
        true
    }
}

/// The time of the database, since 1970.
async fn database_time(pool: &Pool) -> Result<Duration, sqlx::Error> {
    let asking = sqlx::query_scalar!(r#"select extract(epoch from clock_timestamp())::float8 as "now!""#)
        .fetch_one(pool);
    let seconds = within_deadline(TIME_DEADLINE, asking).await?;
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_was_set_is_suspect_until_it_is_set_back_or_an_hour_has_passed() {
        const MONTH: i64 = 31 * 24 * 60;
        let own = Duration::from_mins(30_000_000);
        let (mut watch, mut last) = (ClockWatch::default(), 0);
        for _ in 0..3 {
            let month_ahead = own + Duration::from_mins(MONTH.unsigned_abs());
            assert!(!watch.agrees(month_ahead, own), "a new process has only its own clock to compare with");
            tokio::time::advance(ACCEPTED_AFTER).await;
        }
        // In minutes: when it is looked at, and how far the database's clock is ahead then.
        for (minute, ahead, is_steady) in [
            (0, 0, true),
            (1, MONTH, false),
            (2, 0, true),
            (3, -60, false),
            (62, -60, false),
            (63, -60, true),
            (64, -60, true),
            // However long no look was taken.
            (64 + MONTH, -60, true),
        ] {
            tokio::time::advance(Duration::from_mins(u64::try_from(minute - last).unwrap())).await;
            last = minute;
            let now = Duration::from_mins(u64::try_from(30_000_000 + minute + ahead).unwrap());
            assert_eq!(watch.agrees(now, own), is_steady, "after {minute} minutes, {ahead} ahead");
        }
    }
}
