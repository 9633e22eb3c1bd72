//! What happens to a group of deliveries. The rule that everything here serves: *commit, then acknowledge*.

use std::{collections::HashSet, future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use crash_points::crash_point;
use events::Event;
use futures_util::FutureExt;
use messaging::{Backoff, DeadLetter, DeadLetterStore, Failure, Handler, Incoming};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::Error;

/// How long a handler may take for one group.
const HANDLER_DEADLINE: Duration = Duration::from_secs(30);

/// How long a consumer keeps its messages while the handler's database is unavailable to this process. Long enough for a
/// restart of the database: each time that messages go back counts as a delivery, and the broker limits those.
pub const HOLD_DURATION: Duration = Duration::from_secs(15);

/// How often it is checked whether the handler's database is available.
pub(crate) const AVAILABILITY_INTERVAL: Duration = Duration::from_millis(500);

/// How often an event is tried that fails for an unknown reason, before it is set aside.
const UNEXPECTED_TRIES: u32 = 5;

/// An event that was delivered this often without an answer may be what crashes its consumer. It is applied alone, and each
/// attempt is recorded before it begins.
const SUSPICIOUS_DELIVERIES: u32 = 2;

/// How many recorded attempts at an event may crash the consumer before it is set aside.
const MAX_CRASHES: u32 = 5;

/// Tells whether the handler can work, such as whether its database answers: the last known state, without waiting.
pub type Availability = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Where deliveries come from and where the answers go: a channel to RabbitMQ, or the simulation's.
pub trait DeliveryChannel: Send + Sync {
    /// One delivery, not acknowledged yet.
    type Delivery: Send + Sync;

    fn incoming(&self, delivery: &Self::Delivery) -> Incoming;

    /// The dead letter to be saved of a delivery that cannot be applied.
    fn dead_letter(&self, delivery: &Self::Delivery, reason: &str, detail: &str) -> DeadLetter;

    /// Acknowledges a delivery, or with `multiple` also all that came before it.
    fn acknowledge(
        &mut self,
        delivery: &Self::Delivery,
        multiple: bool,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Has the broker move a delivery into its dead-letter queue.
    fn reject(&mut self, delivery: &Self::Delivery) -> impl Future<Output = Result<(), Error>> + Send;

    /// Whether deliveries can still be acknowledged. If not, the broker delivers the group again.
    fn is_open(&self) -> bool;
}

struct Received<D> {
    delivery: D,
    event: Event,
}

/// What to do next with a part of a group. The parts are settled in the order in which they were received: an event must
/// not be set aside before the older events of its aggregate are applied, nor applied before they are set aside.
enum Step<D> {
    Apply(Vec<Received<D>>),
    /// Count the attempt, then apply.
    Attempt(Received<D>),
    EndAttempts(Uuid),
    SetAside {
        delivery: D,
        reason: &'static str,
        detail: String,
    },
    SetAsideBehind(Received<D>),
}

/// How fast a group was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    Normal,
    /// The group was too large to be applied in time, and was divided. The next one should be smaller.
    TooSlow,
}

/// What settles the deliveries of one channel.
pub struct Settling<'a, C, H, L> {
    pub channel: &'a mut C,
    pub handler: &'a H,
    pub letters: &'a L,
    pub available: &'a Availability,
    pub queue: &'static str,
    pub stop: &'a CancellationToken,
}

impl<C: DeliveryChannel, H: Handler, L: DeadLetterStore> Settling<'_, C, H, L> {
    /// Applies a group in one transaction and acknowledges it with one answer. A group that takes too long is halved. If
    /// it fails otherwise, each event is tried alone, so that one bad message does not block the rest; a message that can
    /// never be applied is saved as a dead letter.
    ///
    /// # Errors
    /// When the channel fails, when the handler was not available for [`HOLD_DURATION`], or when `stop` comes during a
    /// temporary failure: unacknowledged messages are delivered again, to this consumer or to another.
    pub async fn settle(&mut self, deliveries: Vec<C::Delivery>) -> Result<Pace, Error> {
        let mut pace = Pace::Normal;
        // The next step is the last one here.
        let mut steps = self.decode(deliveries);
        steps.reverse();
        while let Some(step) = steps.pop() {
            let mut group = match step {
                Step::Apply(group) => group,
                Step::SetAside { delivery, reason, detail } => {
                    self.set_aside(&delivery, reason, &detail).await?;
                    continue;
                }
                Step::Attempt(received) => {
                    steps.push(Step::EndAttempts(received.event.id));
                    steps.push(self.begin_attempt(received).await?);
                    continue;
                }
                Step::EndAttempts(event) => {
                    self.end_attempts(event).await;
                    continue;
                }
                Step::SetAsideBehind(received) => {
                    if !self.set_aside_behind(&received).await? {
                        steps.push(Step::Apply(vec![received]));
                    }
                    continue;
                }
            };
            let events: Vec<_> = group.iter().map(|received| received.event.clone()).collect();
            crash_point("group-received");
            match self.apply(&events).await? {
                Ok(()) => {
                    let Some(last) = group.last() else { continue };
                    self.channel.acknowledge(&last.delivery, true).await?;
                    crash_point("group-acknowledged");
                }
                Err(Failure::Behind(behind)) => {
                    steps.extend(divide(group, &behind).into_iter().rev());
                }
                Err(failure) if events.len() == 1 => {
                    for received in group {
                        self.isolate(&received, &failure).await?;
                    }
                }
                Err(Failure::TooSlow(cause)) => {
                    pace = Pace::TooSlow;
                    tracing::warn!(
                        queue = self.queue,
                        cause,
                        events = events.len(),
                        "a group took too long; halving it"
                    );
                    let second = group.split_off(events.len() / 2);
                    steps.extend([Step::Apply(second), Step::Apply(group)]);
                }
                // One event makes the others fail: try each alone.
                Err(_) => steps.extend(group.into_iter().rev().map(|received| Step::Apply(vec![received]))),
            }
        }
        Ok(pace)
    }

    /// Divides deliveries into groups to apply, and messages between them that cannot be tried.
    fn decode(&self, deliveries: Vec<C::Delivery>) -> Vec<Step<C::Delivery>> {
        let mut steps = vec![];
        for delivery in deliveries {
            let incoming = self.channel.incoming(&delivery);
            let is_suspicious = incoming.earlier_deliveries >= SUSPICIOUS_DELIVERIES;
            match (incoming.decode(), steps.last_mut()) {
                (Ok(event), _) if is_suspicious => steps.push(Step::Attempt(Received { delivery, event })),
                (Ok(event), Some(Step::Apply(group))) => group.push(Received { delivery, event }),
                (Ok(event), _) => steps.push(Step::Apply(vec![Received { delivery, event }])),
                (Err(rejection), _) => {
                    let (reason, detail) = (rejection.reason(), rejection.to_string());
                    steps.push(Step::SetAside { delivery, reason, detail });
                }
            }
        }
        steps
    }

    async fn apply(&self, events: &[Event]) -> Result<Result<(), Failure>, Error> {
        let applying = || async { self.handler.apply(events).await.map(drop) };
        self.retry("apply a group", events.len(), applying).await
    }

    /// Makes attempts until one does not fail temporarily. The messages are kept meanwhile: returned to the queue, they
    /// would look as if they had crashed their consumer. But not for ever: only one instance receives messages, and another
    /// one may reach the database that this one does not reach. The inner error is never temporary.
    async fn retry<T, F>(
        &self,
        what: &str,
        events: usize,
        attempt: impl Fn() -> F,
    ) -> Result<Result<T, Failure>, Error>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let outcome = tokio::select! {
            outcome = self.repeat(what, events, attempt) => outcome,
            reason = self.unavailable() => Err(Error::Unavailable(reason)),
        };
        metrics::gauge!("inbox_applying_seconds", "queue" => self.queue).set(0.0);
        outcome
    }

    /// Returns when the handler has been unavailable for [`HOLD_DURATION`]. Shows meanwhile how long the group takes.
    async fn unavailable(&self) -> String {
        let (began, mut since) = (Instant::now(), None);
        loop {
            sleep(AVAILABILITY_INTERVAL).await;
            metrics::gauge!("inbox_applying_seconds", "queue" => self.queue)
                .set(began.elapsed().as_secs_f64());
            match (self.available)() {
                Ok(()) => since = None,
                Err(reason) if since.get_or_insert_with(Instant::now).elapsed() > HOLD_DURATION => {
                    return reason;
                }
                Err(_) => {}
            }
        }
    }

    async fn repeat<T, F>(
        &self,
        what: &str,
        events: usize,
        attempt: impl Fn() -> F,
    ) -> Result<Result<T, Failure>, Error>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        let mut waiting = false;
        loop {
            // A panic is the handler's failure, not the end of the process.
            let attempted = AssertUnwindSafe(attempt()).catch_unwind();
            let outcome = match timeout(HANDLER_DEADLINE, attempted).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) => Err(Failure::Unexpected("the handler panicked".into())),
                Err(_) => Err(Failure::TooSlow("the handler took too long".into())),
            };
            match outcome {
                // What took too long without its database is not the group's fault. One event cannot be halved.
                Err(Failure::TooSlow(cause)) if events > 1 && (self.available)().is_ok() => {
                    return Ok(Err(Failure::TooSlow(cause)));
                }
                Err(Failure::Temporary(cause) | Failure::TooSlow(cause)) => {
                    if !waiting {
                        waiting = true;
                        tracing::warn!(queue = self.queue, cause, events, "failed to {what}; waiting");
                    }
                    // A stop, or a lost connection, ends the wait: the group is delivered again.
                    if self.stop.run_until_cancelled(sleep(backoff.next_wait())).await.is_none()
                        || !self.channel.is_open()
                    {
                        return Err(Error::Silent(HANDLER_DEADLINE, "applying a group"));
                    }
                }
                done => return Ok(done),
            }
        }
    }

    /// Sets aside an event that cannot be applied: at once if the failure is permanent, else after a few more tries.
    async fn isolate(&mut self, received: &Received<C::Delivery>, failure: &Failure) -> Result<(), Error> {
        let mut detail = failure.to_string();
        let mut is_permanent = matches!(failure, Failure::Permanent(_));
        for attempt in 2..=UNEXPECTED_TRIES {
            if is_permanent {
                break;
            }
            // 100, 200, 400, 800 ms. The message is kept meanwhile: returned to the queue, later events of its aggregate
            // would overtake it.
            sleep(Duration::from_millis(50) * 2_u32.pow(attempt - 1)).await;
            let Event { id, event_type, aggregate_id, .. } = &received.event;
            tracing::warn!(event_id = %id, event_type, %aggregate_id, attempt, detail, "trying an event again");
            match self.apply(std::slice::from_ref(&received.event)).await? {
                Ok(()) => return self.channel.acknowledge(&received.delivery, true).await,
                Err(next) => {
                    (detail, is_permanent) = (next.to_string(), matches!(next, Failure::Permanent(_)));
                }
            }
        }
        let reason = if is_permanent { "permanent" } else { "unexpected" };
        self.set_aside(&received.delivery, reason, &detail).await
    }

    /// Saves a message as a dead letter, then acknowledges it: a crash in between has it delivered and saved again, which
    /// is recognised.
    async fn set_aside(&mut self, delivery: &C::Delivery, reason: &str, detail: &str) -> Result<(), Error> {
        let letter = self.channel.dead_letter(delivery, reason, detail);
        let saving = || self.letters.save(&letter);
        if let Err(failure) = self.retry("save a dead letter", 1, saving).await? {
            // The broker keeps it in the dead-letter queue, from which the collector tries to save it again and again.
            let message_id = letter.message_id;
            tracing::error!(queue = self.queue, message_id, reason, detail, %failure, "failed to save a dead letter");
            return self.channel.reject(delivery).await;
        }
        self.acknowledge_dead_letter(delivery, &letter).await?;
        let message_id = letter.message_id;
        tracing::error!(queue = self.queue, message_id, reason, detail, "message set aside as a dead letter");
        Ok(())
    }

    /// Counts an attempt at an event that may crash this process. The broker's count of deliveries does not tell: it grows
    /// for all messages that were held together with the cause.
    async fn begin_attempt(&self, received: Received<C::Delivery>) -> Result<Step<C::Delivery>, Error> {
        let Event { id, event_type, aggregate_id, .. } = &received.event;
        let counting = || self.letters.begin_attempt(self.queue, *id);
        match self.retry("count an attempt", 1, counting).await? {
            Ok(begun) if begun > MAX_CRASHES => {
                let detail = format!("its consumer crashed during {MAX_CRASHES} attempts to apply it alone");
                return Ok(Step::SetAside { delivery: received.delivery, reason: "attempt-limit", detail });
            }
            Ok(_) => {}
            Err(failure) => {
                tracing::warn!(event_id = %id, event_type, %aggregate_id, %failure, "failed to count an attempt");
            }
        }
        Ok(Step::Apply(vec![received]))
    }

    async fn end_attempts(&self, event: Uuid) {
        if let Err(failure) = self.letters.end_attempts(self.queue, event).await {
            tracing::warn!(event_id = %event, %failure, "failed to forget the attempts at an event");
        }
    }

    /// Sets aside an event that is behind a dead letter. `false`: it no longer is, and can be applied.
    async fn set_aside_behind(&mut self, received: &Received<C::Delivery>) -> Result<bool, Error> {
        let Event { id, event_type, aggregate_id, .. } = &received.event;
        let detail = "an older event of its aggregate is a dead letter";
        let letter = self.channel.dead_letter(&received.delivery, "behind", detail);
        let saving = || self.letters.save_behind(&letter);
        match self.retry("save an event behind a dead letter", 1, saving).await? {
            Ok(true) => {
                self.acknowledge_dead_letter(&received.delivery, &letter).await?;
                tracing::warn!(event_id = %id, event_type, %aggregate_id, "event set aside behind a dead letter");
            }
            Ok(false) => return Ok(false),
            Err(failure) => {
                tracing::error!(event_id = %id, event_type, %aggregate_id, %failure, "failed to save a dead letter");
                self.channel.reject(&received.delivery).await?;
            }
        }
        Ok(true)
    }

    async fn acknowledge_dead_letter(
        &mut self,
        delivery: &C::Delivery,
        letter: &DeadLetter,
    ) -> Result<(), Error> {
        crash_point("dead-letter-saved");
        self.channel.acknowledge(delivery, false).await?;
        metrics::counter!("inbox_dead_lettered_total", "reason" => letter.reason.clone()).increment(1);
        Ok(())
    }
}

/// Divides a group into events that are behind a dead letter and groups of the others, in their order.
fn divide<D>(group: Vec<Received<D>>, behind: &HashSet<Uuid>) -> Vec<Step<D>> {
    let mut steps = vec![];
    for received in group {
        match steps.last_mut() {
            _ if behind.contains(&received.event.id) => steps.push(Step::SetAsideBehind(received)),
            Some(Step::Apply(others)) => others.push(received),
            _ => steps.push(Step::Apply(vec![received])),
        }
    }
    steps
}
