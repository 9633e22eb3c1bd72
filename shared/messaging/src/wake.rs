//! Optional. Without it: each relay polls, and an event waits for up to a second. Wake-ups change how soon an event is
//! published, never whether: if all of them are lost, the poll finds it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::{Mutex, Notify},
    time::timeout,
};

use crate::RoundLimiter;

/// Tells the relays that an event was committed. Cheap to clone.
#[derive(Clone, Default)]
pub struct Wake(Arc<Signals>);

#[derive(Default)]
struct Signals {
    /// Wakes one relay.
    committed: Notify,
    /// One relay of this process at a time waits for `committed` or for the poll, and the others wait for this: the limit is
    /// one for all of them, and so is the poll.
    limiter: Mutex<RoundLimiter>,
    /// Whether the last step of a relay left events behind.
    behind: AtomicBool,
}

impl Wake {
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes the relays. Call it after the commit: before it, the relay would scan, find nothing, and sleep again.
    pub fn after_commit(&self) {
        self.0.committed.notify_one();
    }

    /// Whether the relays of this process have more events to publish than one step takes. Not while the broker is unavailable:
    /// then they do not compete with other work.
    pub fn is_behind(&self) -> bool {
        self.0.behind.load(Relaxed)
    }

    pub(crate) fn set_behind(&self, behind: bool) {
        self.0.behind.store(behind, Relaxed);
    }

    /// Waits for a wake-up.
    pub async fn committed(&self) {
        self.0.committed.notified().await;
    }

    /// Waits for a wake-up, or for as long as `poll`. A wake-up that came while no relay was waiting is kept, so a busy relay
    /// misses none. `worked` is how long the caller's last step was at work.
    pub async fn woken(&self, worked: Duration, poll: Duration) {
        let mut limiter = self.0.limiter.lock().await;
        // First the pause, then the wake-up: what is committed during the pause needs no separate step.
        limiter.wait(worked).await;
        // A time-out is the poll.
        let _ = timeout(poll, self.committed()).await;
    }
}
