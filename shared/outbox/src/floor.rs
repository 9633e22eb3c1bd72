//! From where on a relay looks for work, lane by lane, so that it does not walk over its own past.
//!
//! A row that is published leaves the index of what is owed, but its entry stays there until vacuum has come by, and
//! vacuum waits for the oldest transaction of the whole server. While somebody's report runs for an hour, a million dead
//! entries gather at the head of that index, and each look would walk over all of them.

use std::{collections::HashSet, time::Duration};

use events::LANES;
use tokio::time::Instant;

const COUNT: usize = LANES as usize;

/// How far below the last published event of a lane a look begins. Sequence numbers are drawn before the commit, so an
/// event may become visible after later numbers were published. One that is late by fewer numbers than this is found
/// at once, and one that is later still by the next full look.
const SLACK: i64 = 5000;

/// Kept in memory, by each relay for itself, and only ever a hint: a full look every few seconds begins at zero again.
/// It can delay an event by that long, and lose none.
#[derive(Debug, Clone)]
pub(crate) struct Floor {
    behind: [i64; COUNT],
    /// The lowest event of each lane that was seen since the last full look and not published.
    unpublished: [i64; COUNT],
    full_look: Duration,
    next_full_look: Instant,
}

impl Floor {
    pub(crate) fn new(full_look: Duration) -> Self {
        let (behind, unpublished) = ([0; COUNT], [i64::MAX; COUNT]);
        Self { behind, unpublished, full_look, next_full_look: Instant::now() }
    }

    /// Behind which `seq` the next look begins in each lane.
    pub(crate) fn next_look(&mut self) -> [i64; COUNT] {
        let now = Instant::now();
        if now < self.next_full_look {
            return self.behind;
        }
        self.next_full_look = now + self.full_look;
        // What is still due is seen again by this very look; what backs off is found by the next one.
        self.unpublished = [i64::MAX; COUNT];
        [0; COUNT]
    }

    /// An event that was refused comes back after a while, behind which others will have been published.
    pub(crate) fn look_everywhere_next(&mut self) {
        self.next_full_look = Instant::now();
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
