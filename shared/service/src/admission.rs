//! Optional. Without it: an overloaded service spends nearly all its time on requests whose clients have given up.
//!
//! Decides which requests are worked on. The others are refused early, with 503.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
    time::{Instant, timeout_at},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

/// How long a request may wait for its turn, unless a service says otherwise. Far less than clients wait.
pub const MAX_WAIT: Duration = Duration::from_millis(500);

/// Divides the longest wait while the queue never empties.
const LATE: u32 = 5;

/// Divides the number of writing requests at work when the queue does not empty and the relay is behind. Doubles while that lasts,
/// until two are left, and is halved step by step when the relay is not behind.
const BEHIND: u32 = 4;

/// Runs a limited number of requests at once, and queues the others in order, up to a number and a time.
///
/// A queue absorbs a burst. If it does not empty for as long as a request may wait, it no longer absorbs anything: it only adds
/// latency. From then on requests may wait for a fifth of that time, so the requests that run are fresh, and the others find out
/// early that they should retry later or elsewhere. It is the rule of CoDel (RFC 8289), with time-outs in place of its schedule
/// of drops. Only as many wait then as are worked on: further ones would find no turn in that time, and are refused at once.
///
/// And then fewer and fewer are worked on while the relay is behind, until it is not. Each order that is accepted is an event to
/// publish: a service that accepts more than it publishes promises more and more, later and later.
pub struct Admission {
    at_work: Arc<Semaphore>,
    max_at_work: u32,
    is_behind: Box<dyn Fn() -> bool + Send + Sync>,
    /// Running and queued, at most `max`.
    places: Arc<Semaphore>,
    max: usize,
    max_wait: Duration,
    queue: Mutex<Queue>,
    /// Where admitted requests run.
    runtime: Handle,
}

/// What is known about the requests that wait.
struct Queue {
    /// When a request last found a turn free.
    emptied: Instant,
    /// How many turns a writing request takes.
    turns: u32,
    /// When that was decided.
    decided: Instant,
}

impl Admission {
    /// Works on `at_work` requests at a time, in the runtime of the caller. With those that wait there are `max` at most.
    pub fn new(at_work: usize, max: usize) -> Self {
        Self {
            at_work: Arc::new(Semaphore::new(at_work)),
            max_at_work: at_work.try_into().unwrap_or(u32::MAX),
            is_behind: Box::new(|| false),
            places: Arc::new(Semaphore::new(max)),
            max,
            max_wait: MAX_WAIT,
            queue: Mutex::new(Queue { emptied: Instant::now(), turns: 1, decided: Instant::now() }),
            runtime: Handle::current(),
        }
    }

    /// Overrides the longest wait.
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
        let place = self.places.clone().try_acquire_owned().ok()?;
        let taken = self.max - self.places.available_permits();
        let is_hopeless = taken > 2 * self.max_at_work as usize && self.is_late(&self.queue());
        (!is_hopeless).then_some(place)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_late(&self, queue: &Queue) -> bool {
        queue.emptied.elapsed() > self.max_wait
    }

    /// Waits for the turn of a request that arrived at this moment. `None`: it did not come in time. `writes`: whether it may
    /// write an event.
    async fn turn(&self, arrived: Instant, writes: bool) -> Option<OwnedSemaphorePermit> {
        let turns = if writes { self.turns() } else { 1 };
        if let Ok(turn) = self.at_work.clone().try_acquire_many_owned(turns) {
            self.queue().emptied = Instant::now();
            return Some(turn);
        }
        let wait = if self.is_late(&self.queue()) { self.max_wait / LATE } else { self.max_wait };
        timeout_at(arrived + wait, self.at_work.clone().acquire_many_owned(turns)).await.ok()?.ok()
    }

    /// How many turns a writing request takes. Decided again after the time of the longest wait.
    fn turns(&self) -> u32 {
        let mut queue = self.queue();
        if queue.decided.elapsed() > self.max_wait {
            let turns = match ((self.is_behind)(), self.is_late(&queue)) {
                (true, true) => (2 * queue.turns).max(BEHIND),
                (true, false) => queue.turns,
                (false, _) => queue.turns / 2,
            };
            (queue.turns, queue.decided) = (turns.clamp(1, (self.max_at_work / 2).max(1)), Instant::now());
        }
        queue.turns
    }
}

/// Works on a request if it is its turn in time. If its client gives up, it leaves the queue or is dropped.
pub(crate) async fn admit(State(admission): State<Arc<Admission>>, request: Request, next: Next) -> Response {
    let refused = || StatusCode::SERVICE_UNAVAILABLE.into_response();
    let Some(place) = admission.place() else { return refused() };
    let (arrived, writes) = (Instant::now(), !request.method().is_safe());
    let runtime = admission.runtime.clone();
    // The wait happens there too: under overload the HTTP thread is busy, and a turn that it was given would stay unused until
    // the thread got around to it.
    let working = async move {
        let _place = place;
        let Some(_turn) = admission.turn(arrived, writes).await else { return refused() };
        next.run(request).await
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
        let longest = 2 * MAX_WAIT;
        let admission = Admission::new(1, 100).waiting_for(longest);
        let working = admission.turn(Instant::now(), true).await.unwrap();
        let waited = async || {
            let began = Instant::now();
            assert!(admission.turn(Instant::now(), true).await.is_none());
            began.elapsed()
        };
        assert_eq!(waited().await, longest);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(waited().await, longest / LATE);

        drop(working);
        drop(admission.turn(Instant::now(), true).await.unwrap());
        let working = admission.turn(Instant::now(), true).await.unwrap();
        assert_eq!(waited().await, longest);
        drop(working);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_take_turns_in_order() {
        let admission = Arc::new(Admission::new(1, 3));
        let working = admission.turn(Instant::now(), true).await.unwrap();
        let order = Arc::new(Mutex::new(vec![]));
        let mut waiting = JoinSet::new();
        for number in 0..2 {
            let (admission, order) = (admission.clone(), order.clone());
            waiting.spawn(async move {
                let _turn = admission.turn(Instant::now(), true).await.unwrap();
                order.lock().unwrap().push(number);
            });
            tokio::task::yield_now().await;
        }
        drop(working);
        waiting.join_all().await;
        assert_eq!(*order.lock().unwrap(), [0, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn places_are_limited_and_fewer_while_the_queue_never_empties() {
        let admission = Admission::new(2, 8);
        let places = || std::iter::from_fn(|| admission.place()).take(9).collect::<Vec<_>>().len();
        assert_eq!(places(), 8);
        tokio::time::advance(MAX_WAIT + Duration::from_millis(1)).await;
        assert_eq!(places(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn fewer_requests_are_worked_on_while_the_queue_never_empties_and_the_relay_is_behind() {
        let behind = Arc::new(AtomicBool::new(true));
        let probe = behind.clone();
        let admission = Arc::new(Admission::new(32, 100).giving_way(move || probe.load(Relaxed)));
        // All of its turns end when forty requests wait for theirs. How many of those get one?
        let after = async |turns: Vec<OwnedSemaphorePermit>| {
            let mut waiting = JoinSet::new();
            for _ in 0..40 {
                let admission = admission.clone();
                waiting.spawn(async move { admission.turn(Instant::now(), true).await });
            }
            tokio::task::yield_now().await;
            drop(turns);
            // The others wait until they are refused.
            waiting.join_all().await.into_iter().flatten().collect::<Vec<_>>()
        };
        let mut first = vec![];
        while let Some(turn) = admission.turn(Instant::now(), true).await {
            first.push(turn);
        }
        assert_eq!(first.len(), 32, "the queue was empty a moment ago");
        let mut turns = first;
        for (is_behind, expected) in
            [(true, 8), (true, 4), (true, 2), (true, 2), (false, 4), (false, 8), (false, 16)]
        {
            behind.store(is_behind, Relaxed);
            tokio::time::advance(MAX_WAIT + Duration::from_millis(1)).await;
            turns = after(turns).await;
            assert_eq!(turns.len(), expected);
        }
    }
}
