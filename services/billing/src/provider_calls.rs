use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::due_payments::DuePayment;

/// The calls to the payment provider that one instance may make at the same time. The worker makes them for payments that are
/// due, and for those that the handler hands over.
#[derive(Debug)]
pub struct ProviderCalls {
    places: Arc<Semaphore>,
    most: usize,
    /// How long a payment that one instance has taken is left alone by others: longer than a call takes.
    pub(crate) retry_lease: Duration,
    may_be_due: AtomicBool,
    /// Wakes the worker.
    pub(crate) changed: Notify,
    handed_over: Mutex<Vec<DuePayment>>,
}

impl ProviderCalls {
    pub fn new(most: u16, retry_lease: Duration) -> Arc<Self> {
        Arc::new(Self {
            places: Arc::new(Semaphore::new(most.into())),
            most: most.into(),
            retry_lease,
            may_be_due: AtomicBool::new(true),
            changed: Notify::new(),
            handed_over: Mutex::default(),
        })
    }

    /// Has the worker look for payments that are due.
    pub fn look(&self) {
        self.may_be_due.store(true, Ordering::SeqCst);
        self.changed.notify_one();
    }

    /// All free places, if payments may be due. `None` also while most calls are in progress: taking payments is a commit,
    /// so under load the worker takes several at once.
    pub(crate) fn places_for_due(&self) -> Option<OwnedSemaphorePermit> {
        let free = self.places.available_permits();
        if free * 4 < self.most || !self.may_be_due.swap(false, Ordering::SeqCst) {
            return None;
        }
        self.places.clone().try_acquire_many_owned(free.try_into().ok()?).inspect_err(|_| self.look()).ok()
    }

    /// Free places for new payments: none while others may be due. Otherwise each place that gets free would go to the
    /// newest payment, and refunds and repeated calls would wait for as long as new ones keep coming.
    pub(crate) fn places_for_new(&self, most: usize) -> Vec<OwnedSemaphorePermit> {
        let most = if self.may_be_due.load(Ordering::SeqCst) { 0 } else { most };
        std::iter::from_fn(|| self.places.clone().try_acquire_owned().ok()).take(most).collect()
    }

    /// Gives the worker payments that were committed as taken.
    pub(crate) fn hand_over(&self, taken: Vec<DuePayment>) {
        self.handed_over.lock().unwrap_or_else(PoisonError::into_inner).extend(taken);
        self.changed.notify_one();
    }

    pub(crate) fn handed_over(&self) -> Vec<DuePayment> {
        std::mem::take(&mut *self.handed_over.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
