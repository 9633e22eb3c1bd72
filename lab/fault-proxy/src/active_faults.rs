//! The faults of one route that are in force now.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    pin,
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};

use crate::{Effect, Fault, fault::Toward};

/// A fault that was injected, with what is left of it.
#[derive(Debug)]
pub(crate) struct ActiveFault {
    pub(crate) fault: Fault,
    ends_at: Instant,
    resets_left: Option<AtomicU32>,
}

impl ActiveFault {
    fn start(fault: Fault) -> Arc<Self> {
        let resets_left = fault.times.map(|times| AtomicU32::new(times.get()));
        Arc::new(Self { ends_at: Instant::now() + fault.lasts, resets_left, fault })
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.ends_at.saturating_duration_since(Instant::now())
    }

    pub(crate) fn resets_left(&self) -> Option<u32> {
        self.resets_left.as_ref().map(|left| left.load(Ordering::Relaxed))
    }
}

/// One published list of faults. It never changes: each change publishes a new one.
#[derive(Debug)]
pub(crate) struct FaultList {
    pub(crate) faults: Vec<Arc<ActiveFault>>,
    released: Arc<Notify>,
}

impl FaultList {
    pub(crate) fn cuts(&self, toward: Toward) -> bool {
        self.covers(toward, |effect| *effect == Effect::Cut)
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cuts(Toward::Upstream) || self.cuts(Toward::Client)
    }

    pub(crate) fn is_black_hole(&self, toward: Toward) -> bool {
        self.covers(toward, |effect| *effect == Effect::BlackHole)
    }

    fn covers(&self, toward: Toward, is_meant: impl Fn(&Effect) -> bool) -> bool {
        self.faults
            .iter()
            .any(|active| active.fault.direction.covers(toward) && is_meant(&active.fault.effect))
    }
}

impl Drop for FaultList {
    fn drop(&mut self) {
        self.released.notify_waiters();
    }
}

/// Publishes the list of faults to the tasks of a route.
///
/// A task holds the list that it acts on. So a list that was replaced is dropped when the last task has taken a newer
/// one, and [`in_force`](Self::in_force) can wait for that.
#[derive(Debug)]
pub(crate) struct ActiveFaults {
    published: watch::Sender<Arc<FaultList>>,
    replaced: Mutex<Vec<Weak<FaultList>>>,
    released: Arc<Notify>,
}

impl ActiveFaults {
    pub(crate) fn new() -> Self {
        let released = Arc::new(Notify::new());
        let empty = FaultList { faults: Vec::new(), released: Arc::clone(&released) };
        Self { published: watch::Sender::new(Arc::new(empty)), replaced: Mutex::default(), released }
    }

    pub(crate) fn list(&self) -> Arc<FaultList> {
        Arc::clone(&self.published.borrow())
    }

    /// Publishes every later list. Tasks read it through a `FaultView`.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<FaultList>> {
        self.published.subscribe()
    }

    /// Adds a fault unless there are `limit` already.
    pub(crate) fn add(&self, fault: Fault, limit: usize) -> bool {
        let mut has_room = false;
        self.publish(|faults| {
            has_room = faults.len() < limit;
            if has_room {
                faults.push(ActiveFault::start(fault));
            }
        });
        has_room
    }

    pub(crate) fn replace(&self, list: Vec<Fault>) {
        self.publish(|faults| *faults = list.into_iter().map(ActiveFault::start).collect());
    }

    /// Takes one of the resets that a fault has left. False means that other connections have used them all.
    pub(crate) fn claim_reset(&self, active: &Arc<ActiveFault>) -> bool {
        let Some(left) = &active.resets_left else { return true };
        let claimed = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if claimed == Ok(1) {
            self.publish(|faults| faults.retain(|other| !Arc::ptr_eq(other, active)));
        }
        claimed.is_ok()
    }

    /// Waits until no task acts on a list that was replaced before this call.
    pub(crate) async fn in_force(&self) {
        let replaced = self.replaced.lock().unwrap_or_else(PoisonError::into_inner).clone();
        loop {
            let released = self.released.notified();
            pin!(released);
            // Registered before the look: a list that is dropped between the two would not wake this task.
            released.as_mut().enable();
            if replaced.iter().all(|list| list.strong_count() == 0) {
                return;
            }
            released.await;
        }
    }

    /// Ends each fault at its end time, for as long as it is polled.
    pub(crate) async fn expire(&self) {
        let mut changes = self.published.subscribe();
        loop {
            let next_end = changes.borrow_and_update().faults.iter().map(|active| active.ends_at).min();
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = sleep_until(next_end.unwrap_or_else(Instant::now)), if next_end.is_some() => {
                    self.publish(|faults| faults.retain(|active| !active.remaining().is_zero()));
                }
            }
        }
    }

    fn publish(&self, change: impl FnOnce(&mut Vec<Arc<ActiveFault>>)) {
        let mut replaced = self.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        let mut faults = self.published.borrow().faults.clone();
        change(&mut faults);
        let list = FaultList { faults, released: Arc::clone(&self.released) };
        let before = self.published.send_replace(Arc::new(list));
        replaced.retain(|list| list.strong_count() > 0);
        replaced.push(Arc::downgrade(&before));
    }
}
