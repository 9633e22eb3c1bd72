//! Optional. Without it: each scan walks over the entries of all events that were published since the last vacuum.
//!
//! From which `seq` on a relay scans each lane. `docs/scan-watermark.md` explains why this exists and what it may not do.
//!
//! In short: the index entry of a published row stays until vacuum removes it, and vacuum waits for the oldest
//! transaction of the server. While a report runs for an hour, a million dead entries gather at the head of the index.
//!
//! The watermark is a hint in the memory of one relay. Each lane is scanned in full every few seconds, so a wrong
//! watermark delays an event by that long and loses none.

use std::{array, collections::HashSet, time::Duration};

use events::LANES;
use tokio::time::Instant;

use messaging::ClaimedEvent;

const LANE_COUNT: usize = LANES as usize;

/// How far below the last published event a scan begins. Sequence numbers are drawn before the commit, so an event may
/// become visible after higher numbers were published. One that is later still waits for the lane's next full scan.
const LATE_COMMIT_MARGIN: i64 = 5000;

/// The pause after a full scan, as a multiple of what it took: with a million dead entries to walk over, full scans then
/// use at most a twentieth of the relay's time.
const PAUSE_FACTOR: u32 = 20;

/// The longest pause, as a multiple of the usual interval: a minute by default.
const MAX_PAUSE_FACTOR: u32 = 20;

/// The least pause after a full scan that took so long.
pub(crate) fn pause_after(took: Duration, interval: Duration) -> Duration {
    (took * PAUSE_FACTOR).min(interval * MAX_PAUSE_FACTOR)
}

/// The watermark of each lane, and when the lane is scanned in full again.
#[derive(Debug, Clone)]
pub(crate) struct ScanWatermark {
    scan_from: [i64; LANE_COUNT],
    /// The lowest event of each lane that was read since its last full scan and not published.
    lowest_unpublished: [i64; LANE_COUNT],
    next_full_scan: [Instant; LANE_COUNT],
    full_scan_interval: Duration,
}

/// One scan: where it reads, how long it takes, and what became of the events it found.
#[derive(Debug)]
pub(crate) struct Scan<'watermark> {
    watermark: &'watermark mut ScanWatermark,
    began: Instant,
    /// The `seq` after which each lane is read.
    pub(crate) from: [i64; LANE_COUNT],
    /// The lanes that this scan reads from their beginning.
    is_full: [bool; LANE_COUNT],
    /// The lane and the `seq` of each event that it has found.
    claimed: Vec<(usize, i64)>,
}

impl ScanWatermark {
    pub(crate) fn new(full_scan_interval: Duration) -> Self {
        Self {
            scan_from: [0; LANE_COUNT],
            lowest_unpublished: [i64::MAX; LANE_COUNT],
            next_full_scan: [Instant::now(); LANE_COUNT],
            full_scan_interval,
        }
    }

    pub(crate) fn start_scan(&mut self) -> Scan<'_> {
        let began = Instant::now();
        let is_full = self.next_full_scan.map(|at| at <= began);
        let from = array::from_fn(|lane| if is_full[lane] { 0 } else { self.scan_from[lane] });
        Scan { watermark: self, began, from, is_full, claimed: vec![] }
    }
}

impl Scan<'_> {
    /// Records what the statement of this scan has found, and how long it took. With `more`, only the lanes of these events
    /// were read, otherwise all. A statement that failed counts as one that read all: repeated at once, it would fail
    /// for the same reason.
    pub(crate) fn ended(&mut self, events: &[ClaimedEvent], more: bool) {
        let lane =
            |event: &ClaimedEvent| usize::try_from(event.message.lane).ok().filter(|lane| *lane < LANE_COUNT);
        self.claimed = events.iter().filter_map(|event| Some((lane(event)?, event.seq))).collect();
        let lanes: Vec<_> = self.claimed.iter().filter(|_| more).map(|(lane, _)| *lane).collect();
        self.lanes_read(&lanes);
    }

    /// Sets when these lanes are scanned in full again; without any, all.
    fn lanes_read(&mut self, lanes: &[usize]) {
        let (now, interval) = (Instant::now(), self.watermark.full_scan_interval);
        let pause = pause_after(self.began.elapsed(), interval);
        for lane in (0..LANE_COUNT).filter(|lane| self.is_full[*lane]) {
            let was_read = lanes.is_empty() || lanes.contains(&lane);
            // A lane that was locked out of this scan is due for a full one soon, but not in every step if each takes long.
            self.watermark.next_full_scan[lane] = now + if was_read { interval.max(pause) } else { pause };
            if was_read {
                // This scan reads again what is still claimable; the next full one finds what is backing off now.
                self.watermark.lowest_unpublished[lane] = i64::MAX;
            }
        }
    }

    /// A refused event becomes claimable again below events that are published in the meantime: scan in full next time.
    pub(crate) fn refused(&mut self) {
        self.watermark.next_full_scan = [Instant::now(); LANE_COUNT];
    }

    /// Moves the watermarks: the marks of this scan are committed.
    ///
    /// The last published event decides, not the highest ever published: when an operator has a hundred thousand old
    /// events published again, the first full scan finds the first few hundred, and the next scans must continue there.
    pub(crate) fn committed(self, published: impl IntoIterator<Item = i64>) {
        let Self { watermark, claimed, .. } = self;
        let published: HashSet<_> = published.into_iter().collect();
        for (lane, seq) in claimed {
            if published.contains(&seq) {
                watermark.scan_from[lane] = seq.saturating_sub(LATE_COMMIT_MARGIN);
            } else {
                watermark.lowest_unpublished[lane] = watermark.lowest_unpublished[lane].min(seq);
            }
        }
        for (scan_from, unpublished) in watermark.scan_from.iter_mut().zip(watermark.lowest_unpublished) {
            *scan_from = (*scan_from).min(unpublished.saturating_sub(1)).max(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(3);

    /// A watermark that has published up to 9,000 in lanes 0 and 1.
    fn watermark() -> ScanWatermark {
        let mut watermark = ScanWatermark::new(INTERVAL);
        let mut scan = watermark.start_scan();
        scan.lanes_read(&[]);
        scan.claimed.extend([(0, 9000), (1, 9000)]);
        scan.committed([9000]);
        assert_eq!(watermark.start_scan().from[..2], [4000, 4000]);
        watermark
    }

    /// Makes a scan that takes so long, and reads these lanes. Returns where it began in the first two.
    async fn scan(watermark: &mut ScanWatermark, lanes: &[usize], took: Duration) -> [i64; 2] {
        let mut scan = watermark.start_scan();
        advance(took).await;
        scan.lanes_read(lanes);
        [scan.from[0], scan.from[1]]
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_scan_that_takes_long_is_made_less_often() {
        let (mut watermark, second) = (watermark(), Duration::from_secs(1));
        advance(INTERVAL).await;
        let from = scan(&mut watermark, &[0, 1], second).await;
        assert_eq!(from, [0, 0], "a quick one is due again after three seconds");
        advance(second * 19).await;
        assert_eq!(scan(&mut watermark, &[], second).await[0], 4000, "one that took a second is not");
        let from = scan(&mut watermark, &[], second * 100).await;
        assert_eq!(from[0], 0, "but it is after twenty, and what other scans took does not matter");
        advance(INTERVAL * MAX_PAUSE_FACTOR).await;
        assert_eq!(watermark.start_scan().from[0], 0, "nor is any pause longer than a minute");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_that_a_full_scan_did_not_read_is_scanned_in_full_soon() {
        let mut watermark = watermark();
        advance(INTERVAL).await;
        scan(&mut watermark, &[0], Duration::from_millis(1)).await;
        assert_eq!(watermark.start_scan().from[..2], [4000, 4000]);
        advance(Duration::from_millis(20)).await;
        assert_eq!(watermark.start_scan().from[..2], [4000, 0], "soon");
    }
}
