//! From where on a relay looks for work, lane by lane, so that it does not walk over its own past.
//!
//! A row that is published leaves the index of what is owed, but its entry stays there until vacuum has come by, and
//! vacuum waits for the oldest transaction of the whole server. While somebody's report runs for an hour, a million dead
//! entries gather at the head of that index, and each look would walk over all of them.

use std::{array, collections::HashSet, time::Duration};

use events::LANES;
use tokio::time::Instant;

const COUNT: usize = LANES as usize;

/// How far below the last published event of a lane a look begins. Sequence numbers are drawn before the commit, so an
/// event may become visible after later numbers were published. One that is late by fewer numbers than this is found
/// at once, and one that is later still by the lane's next full look.
const SLACK: i64 = 5000;

/// After a full look, so many times what it took pass before the next: with a million dead entries to walk over, full
/// looks then take a tenth of the relay's time at most, and not half of it.
const REST: u32 = 20;

/// And no longer than so many times the usual, whatever it took: a minute, by default.
const LONGEST_REST: u32 = 20;

/// Kept in memory, by each relay for itself, and only ever a hint: every few seconds a lane is looked at from its
/// beginning again. It can delay an event by that long, and lose none. Full looks that take long are made less often.
#[derive(Debug, Clone)]
pub(crate) struct Floor {
    behind: [i64; COUNT],
    /// The lowest event of each lane that was seen since its last full look and not published.
    unpublished: [i64; COUNT],
    full_look: Duration,
    next_full_look: [Instant; COUNT],
    /// Which lanes the look that is under way sees from their beginning, and what it has taken so far.
    whole: [bool; COUNT],
    spent: Duration,
}

impl Floor {
    pub(crate) fn new(full_look: Duration) -> Self {
        Self {
            behind: [0; COUNT],
            unpublished: [i64::MAX; COUNT],
            full_look,
            next_full_look: [Instant::now(); COUNT],
            whole: [false; COUNT],
            spent: Duration::ZERO,
        }
    }

    /// Behind which `seq` the next look begins in each lane.
    pub(crate) fn next_look(&mut self) -> [i64; COUNT] {
        let now = Instant::now();
        self.spent = Duration::ZERO;
        self.whole = self.next_full_look.map(|at| at <= now);
        array::from_fn(|lane| if self.whole[lane] { 0 } else { self.behind[lane] })
    }

    /// A statement of this look took so long, and has seen these lanes: all of them, if there are none. A statement that
    /// failed counts like that too: it would fail again at once, for the same reason.
    pub(crate) fn looked(&mut self, lanes: &[i16], took: Duration) {
        self.spent += took;
        let now = Instant::now();
        let rest = (self.spent * REST).min(self.full_look * LONGEST_REST);
        for lane in 0..COUNT {
            if !self.whole[lane] {
                continue;
            }
            if lanes.is_empty() || lanes.iter().any(|seen| usize::try_from(*seen) == Ok(lane)) {
                self.next_full_look[lane] = now + self.full_look.max(rest);
                // What is still due is seen again by this very look; what backs off is found by the next one.
                self.unpublished[lane] = i64::MAX;
            } else {
                // Walked over, but not read: soon again, and not in every step if each takes long.
                self.next_full_look[lane] = now + rest;
            }
        }
    }

    /// An event that was refused comes back after a while, behind which others will have been published.
    pub(crate) fn look_everywhere_next(&mut self) {
        self.next_full_look = [Instant::now(); COUNT];
    }

    /// A step is done: of `claimed`, which is in order, the events in `confirmed` are published.
    ///
    /// The last one published decides, not the highest ever: when an operator has a hundred thousand old events published
    /// again, the first full look finds the first few hundred of them, and the looks that follow have to go on there.
    pub(crate) fn committed(&mut self, claimed: &[(i16, i64)], confirmed: &[i64]) {
        let published: HashSet<_> = confirmed.iter().collect();
        for &(lane, seq) in claimed {
            let Some(lane) = usize::try_from(lane).ok().filter(|lane| *lane < COUNT) else { continue };
            if published.contains(&seq) {
                self.behind[lane] = seq.saturating_sub(SLACK);
            } else {
                self.unpublished[lane] = self.unpublished[lane].min(seq);
            }
        }
        for (behind, unpublished) in self.behind.iter_mut().zip(self.unpublished) {
            *behind = (*behind).min(unpublished.saturating_sub(1)).max(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const FULL_LOOK: Duration = Duration::from_secs(3);

    /// A floor that has published far ahead in lanes 0 and 1.
    fn floor() -> Floor {
        let mut floor = Floor::new(FULL_LOOK);
        floor.next_look();
        floor.looked(&[], Duration::from_millis(1));
        floor.committed(&[(0, 9000), (1, 9000)], &[9000]);
        assert_eq!(floor.next_look()[..2], [4000, 4000]);
        floor
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_look_that_takes_long_is_made_less_often() {
        let mut floor = floor();
        advance(FULL_LOOK).await;
        assert_eq!(floor.next_look()[0], 0, "a quick one is due again after three seconds");
        floor.looked(&[], Duration::from_millis(400));
        floor.looked(&[0, 1], Duration::from_millis(600));
        advance(Duration::from_secs(19)).await;
        assert_eq!(floor.next_look()[0], 4000, "one that took a second is not");
        floor.looked(&[], Duration::from_secs(100));
        advance(Duration::from_secs(1)).await;
        assert_eq!(
            floor.next_look()[0],
            0,
            "but it is after twenty, and what other looks took does not matter"
        );

        floor.looked(&[], Duration::from_secs(100));
        advance(FULL_LOOK * LONGEST_REST).await;
        assert_eq!(floor.next_look()[0], 0, "nor is any rest longer than a minute");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_that_a_full_look_did_not_reach_is_still_to_be_looked_at() {
        let mut floor = floor();
        advance(FULL_LOOK).await;
        floor.next_look();
        floor.looked(&[0], Duration::from_millis(1));
        assert_eq!(floor.next_look()[..2], [4000, 4000]);
        advance(Duration::from_millis(20)).await;
        assert_eq!(floor.next_look()[..2], [4000, 0], "soon");
    }
}
