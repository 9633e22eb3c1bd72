//! Optional. Without it: under overload, requests wait for longer than their clients do, and nearly all work is in vain.
//!
//! Decides which requests are worked on. The others are refused early, with 503.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    extract::{Request, State},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

/// How long a request may wait for its turn, unless a service says otherwise. Far less than clients wait.
pub const MAX_WAIT: Duration = Duration::from_millis(500);

/// The part of the longest wait that is left while the queue never empties.
const LATE: u32 = 5;

/// The part of the requests at work that is left while the queue never empties and other work is behind.
const BEHIND: u32 = 4;

/// Works on a limited number of requests, lets others wait in order, and bounds their number and their time.
///
/// A queue absorbs a burst. If it does not empty for as long as a request may wait, it no longer absorbs anything: it only
/// makes each request late. Then requests may wait for a fifth of that time, so those that are worked on are young, and the
/// others learn early that they have to try elsewhere or later. It is the rule of CoDel (RFC 8289), with time-outs in place
/// of its schedule of drops.
///
/// And then fewer are worked on while the relay is behind. Each order that is accepted is an event to publish: a service that
/// accepts more than it publishes promises more and more, later and later.
pub struct Admission {
    at_work: Arc<Semaphore>,
    max_at_work: u32,
    is_behind: Box<dyn Fn() -> bool + Send + Sync>,
    /// Those at work and those that wait.
    places: Arc<Semaphore>,
    max_wait: Duration,
    /// When a request last found nobody waiting.
    emptied: Mutex<Instant>,
    /// Where admitted requests run.
    runtime: Handle,
}

impl Admission {
    /// Works on `at_work` requests at a time, in the runtime of the caller. With those that wait there are `max` at most.
    pub fn new(at_work: usize, max: usize) -> Self {
        Self {
            at_work: Arc::new(Semaphore::new(at_work)),
            max_at_work: at_work.try_into().unwrap_or(u32::MAX),
            is_behind: Box::new(|| false),
            places: Arc::new(Semaphore::new(max)),
            max_wait: MAX_WAIT,
            emptied: Mutex::new(Instant::now()),
            runtime: Handle::current(),
        }
    }

    /// With another longest wait.
    #[must_use]
    pub fn waiting_for(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// Works on fewer requests while the queue never empties and `is_behind`.
    #[must_use]
    pub fn giving_way(self, is_behind: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { is_behind: Box::new(is_behind), ..self }
    }

    /// A request's place among those at work and those that wait. `None`: there is none.
    fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.places.clone().try_acquire_owned().ok()
    }

    /// Waits for the turn of a request. `None`: it did not come in time.
    async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(turn) = self.at_work.clone().try_acquire_owned() {
            *self.emptied.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            return Some(turn);
        }
        let emptied = *self.emptied.lock().unwrap_or_else(PoisonError::into_inner);
        let is_late = emptied.elapsed() > self.max_wait;
        let wait = if is_late { self.max_wait / LATE } else { self.max_wait };
        let turns = if is_late && (self.is_behind)() { BEHIND.min(self.max_at_work) } else { 1 };
        timeout(wait, self.at_work.clone().acquire_many_owned(turns)).await.ok()?.ok()
    }
}

/// Works on a request if it is its turn in time. If its client gives up, it leaves the queue or is dropped.
pub(crate) async fn admit(State(admission): State<Arc<Admission>>, request: Request, next: Next) -> Response {
    let refused = || StatusCode::SERVICE_UNAVAILABLE.into_response();
    let Some(place) = admission.place() else { return refused() };
    let runtime = admission.runtime.clone();
    // It also waits there. The thread that reads requests is busy under overload: a turn that it was given would be lost until
    // it came to take it.
    let working = async move {
        let Some(_turn) = admission.turn().await else { return refused() };
        let response = next.run(request).await;
        drop(place);
        response
    };
    match AbortOnDropHandle::new(runtime.spawn(working.in_current_span())).await {
        Ok(response) => response,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The process stops.
            Err(_) => refused(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn queue_that_never_empties_keeps_requests_for_a_shorter_time() {
        let admission = Admission::new(1, 100);
        let working = admission.turn().await.unwrap();
        let waited = async || {
            let began = Instant::now();
            assert!(admission.turn().await.is_none());
            began.elapsed()
        };
        assert_eq!(waited().await, MAX_WAIT);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(waited().await, MAX_WAIT / LATE);

        drop(working);
        drop(admission.turn().await.unwrap());
        let working = admission.turn().await.unwrap();
        assert_eq!(waited().await, MAX_WAIT);
        drop(working);
    }

    #[tokio::test]
    async fn requests_take_turns_in_order_and_have_a_limited_number_of_places() {
        let admission = Arc::new(Admission::new(1, 3));
        let working = admission.turn().await.unwrap();
        let order = Arc::new(Mutex::new(vec![]));
        let mut waiting = JoinSet::new();
        for number in 0..2 {
            let (admission, order) = (admission.clone(), order.clone());
            waiting.spawn(async move {
                let _turn = admission.turn().await.unwrap();
                order.lock().unwrap().push(number);
            });
            tokio::task::yield_now().await;
        }
        drop(working);
        waiting.join_all().await;
        assert_eq!(*order.lock().unwrap(), [0, 1]);

        let places: Vec<_> = std::iter::from_fn(|| admission.place()).take(4).collect();
        assert_eq!(places.len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn fewer_requests_are_worked_on_while_the_queue_never_empties_and_the_relay_is_behind() {
        let behind = Arc::new(AtomicBool::new(true));
        let probe = behind.clone();
        let admission = Arc::new(Admission::new(8, 100).giving_way(move || probe.load(Relaxed)));
        // All of its turns end when ten requests wait for theirs. How many of those get one?
        let after = async |turns: Vec<OwnedSemaphorePermit>| {
            let mut waiting = JoinSet::new();
            for _ in 0..10 {
                let admission = admission.clone();
                waiting.spawn(async move { admission.turn().await });
            }
            tokio::task::yield_now().await;
            drop(turns);
            // The others wait until they are refused.
            waiting.join_all().await.into_iter().flatten().collect::<Vec<_>>()
        };
        let mut first = vec![];
        while let Some(turn) = admission.turn().await {
            first.push(turn);
        }
        assert_eq!(first.len(), 8, "the queue was empty a moment ago");
        tokio::time::advance(MAX_WAIT).await;
        let next = after(first).await;
        assert_eq!(next.len(), 2, "eight places, and each request counts as four");

        behind.store(false, Relaxed);
        assert_eq!(after(next).await.len(), 8);
    }
}
