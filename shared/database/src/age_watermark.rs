//! Optional. Without it: each scan walks over the index entries of all rows that were open since the last vacuum.
//!
//! How far back in time a scan reads the partial index of open rows. An entry stays there until vacuum removes it, and
//! vacuum waits for the oldest transaction of the server (`docs/scan-watermark.md`). The watermark is a hint in memory: full scans
//! find what it hides.

use std::time::Duration;

use tokio::time::Instant;

/// How much further back a scan reads than the oldest row that the last one left: a row becomes visible at its commit.
const LATE_COMMIT_MARGIN: Duration = Duration::from_secs(30);

const FULL_SCAN_INTERVAL: Duration = Duration::from_secs(10);

/// The pause after a full scan, as a multiple of its duration, and the longest one.
const PAUSE_FACTOR: u32 = 20;
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The age that a full scan reads from, a century.
const EVERY_AGE: Duration = Duration::from_hours(876_000);

/// The age of the oldest row that the last scan has left, and when full scans are made.
#[derive(Debug)]
pub struct AgeWatermark {
    oldest: Option<(Duration, Instant)>,
    next_full_scan: Instant,
}

/// A scan that has begun.
#[derive(Debug)]
pub struct AgeScan {
    began: Instant,
    is_full: bool,
    /// It reads no older rows.
    pub max_age: Duration,
}

impl Default for AgeWatermark {
    fn default() -> Self {
        Self { oldest: None, next_full_scan: Instant::now() }
    }
}

impl AgeWatermark {
    pub fn begin(&self) -> AgeScan {
        let began = Instant::now();
        let since = self.oldest.filter(|_| began < self.next_full_scan);
        let max_age = since.map(|(age, at)| age + (began - at) + LATE_COMMIT_MARGIN);
        AgeScan { began, is_full: max_age.is_none(), max_age: max_age.unwrap_or(EVERY_AGE) }
    }

    /// Records the age of the oldest row that a scan has left, when it began; `None` if it failed.
    pub fn ended(&mut self, scan: &AgeScan, oldest: Option<Duration>) {
        let now = Instant::now();
        if scan.is_full {
            let pause = ((now - scan.began) * PAUSE_FACTOR).clamp(FULL_SCAN_INTERVAL, MAX_PAUSE);
            self.next_full_scan = now + pause;
        }
        if let Some(age) = oldest {
            self.oldest = Some((age, scan.began));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn scans_begin_at_the_oldest_row_that_was_left_and_full_ones_are_rarer_the_longer_they_take() {
        let second = Duration::from_secs(1);
        let mut watermark = AgeWatermark::default();
        let scan = watermark.begin();
        assert_eq!(scan.max_age, EVERY_AGE);
        watermark.ended(&scan, None);
        assert_eq!(watermark.begin().max_age, EVERY_AGE, "nothing is known after a failure");
        let scan = watermark.begin();
        advance(second).await;
        watermark.ended(&scan, Some(second * 5));
        advance(second * 2).await;
        let scan = watermark.begin();
        assert_eq!(scan.max_age, LATE_COMMIT_MARGIN + second * 8);
        watermark.ended(&scan, Some(Duration::ZERO));
        assert_eq!(watermark.begin().max_age, LATE_COMMIT_MARGIN);
        advance(second * 17).await;
        assert_ne!(watermark.begin().max_age, EVERY_AGE, "a full scan that took a second pauses twenty");
        advance(second).await;
        assert_eq!(watermark.begin().max_age, EVERY_AGE);
    }
}
