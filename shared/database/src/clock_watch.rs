//! Optional. Without it: a database clock that jumps a month ahead for a minute has everything erased as old.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::Pool;

/// How far the database's clock may move against this process's monotonic one between two looks.
const MAX_DEVIATION: Duration = Duration::from_secs(300);

/// After this long a clock that was set is taken to be right: an operator has corrected it.
const ACCEPTED_AFTER: Duration = Duration::from_secs(3600);

/// How long the database may take to tell the time.
const TIME_DEADLINE: Duration = Duration::from_secs(10);

/// Notices that the database's clock was set, by this process's monotonic clock, which cannot be set.
///
/// What is erased or given up because it is old is gone for good; a clock that is wrong for a minute must not decide it.
/// The first look has nothing to compare with.
#[derive(Debug, Default)]
pub struct ClockWatch {
    /// The time of the database, and of this process, at the last look that was steady.
    last: Option<(Duration, Instant)>,
    /// Since when the clock has been another one.
    set_since: Option<Instant>,
}

impl ClockWatch {
    /// Whether the database's clock has gone as fast as this process's since the last look. `now` is the database's time
    /// since any fixed moment.
    pub fn is_steady(&mut self, now: Duration) -> bool {
        self.is_steady_at(now, Instant::now())
    }

    fn is_steady_at(&mut self, now: Duration, at: Instant) -> bool {
        let deviation = self.last.map_or(Duration::ZERO, |(then, looked_at)| {
            now.abs_diff(then.saturating_add(at.duration_since(looked_at)))
        });
        if deviation <= MAX_DEVIATION {
            self.set_since = None;
        } else if at.duration_since(*self.set_since.get_or_insert(at)) < ACCEPTED_AFTER {
            return false;
        }
        self.last = Some((now, at));
        true
    }
}

/// The time of the database, since 1970.
pub(crate) async fn database_time(pool: &Pool) -> Result<Duration, sqlx::Error> {
    let asking = sqlx::query_scalar!(r#"select extract(epoch from clock_timestamp())::float8 as "now!""#)
        .fetch_one(pool);
    let seconds = timeout(TIME_DEADLINE, asking).await.map_err(|_| sqlx::Error::PoolTimedOut)??;
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const START: Duration = Duration::from_secs(1_800_000_000);

    #[test]
    fn a_clock_that_goes_as_fast_as_ours_is_steady_however_long_no_look_was_taken() {
        let (mut watch, began) = (ClockWatch::default(), Instant::now());
        for hours in [0, 1, 2, 50] {
            assert!(watch.is_steady_at(START + HOUR * hours, began + HOUR * hours), "after {hours} hours");
        }
    }

    #[test]
    fn a_clock_that_was_set_is_suspect_until_it_is_set_back_or_an_hour_has_passed() {
        let (mut watch, began) = (ClockWatch::default(), Instant::now());
        let month = HOUR * 24 * 31;
        let minutes = |count: u32| Duration::from_secs(60) * count;
        assert!(watch.is_steady_at(START, began));
        assert!(!watch.is_steady_at(START + month + minutes(1), began + minutes(1)));
        assert!(watch.is_steady_at(START + minutes(2), began + minutes(2)), "it was set back");
        assert!(!watch.is_steady_at(START + minutes(3) - HOUR, began + minutes(3)), "an hour back");
        assert!(!watch.is_steady_at(START + minutes(62) - HOUR, began + minutes(62)));
        assert!(watch.is_steady_at(START + minutes(63) - HOUR, began + minutes(63)), "an hour later");
        assert!(watch.is_steady_at(START + minutes(64) - HOUR, began + minutes(64)));
    }
}
