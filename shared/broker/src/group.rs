//! What happens to a group of deliveries. The rule that everything here serves: *commit, then acknowledge*.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use crash_points::crash_point;
use events::Event;
use futures_util::FutureExt;
use messaging::{Backoff, Failure, Handler, Incoming};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::Error;

/// How long a handler may take for one group.
const HANDLER_DEADLINE: Duration = Duration::from_secs(30);

/// How long a consumer keeps its messages while the handler's database is unavailable to this process. Long enough for a
/// restart of the database: each time that messages go back counts as a delivery, and the broker limits those.
pub const HOLD_DURATION: Duration = Duration::from_secs(15);

/// How often it is checked whether the handler's database is available.
pub(crate) const AVAILABILITY_INTERVAL: Duration = Duration::from_millis(500);

/// Tells whether the handler can work, such as whether its database answers: the last known state, without waiting.
pub type Availability = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// How often an event is tried that fails for an unknown reason, before it is set aside.
const UNEXPECTED_TRIES: u32 = 5;

/// Where deliveries come from and where the answers go: a channel to RabbitMQ, or the simulation's.
pub trait DeliveryChannel: Send {
    /// One delivery, not acknowledged yet.
    type Delivery: Send + Sync;

    fn incoming(&self, delivery: &Self::Delivery) -> Incoming;

    /// Acknowledges a delivery, or with `multiple` also all that came before it.
    fn acknowledge(
        &mut self,
        delivery: &Self::Delivery,
        multiple: bool,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Publishes a copy to the dead-letter queue, with the reason, and returns once the broker has confirmed it. Does
    /// not acknowledge the delivery. [`Error::Blocked`]: try again later; the others can go on.
    fn publish_dead_letter(
        &mut self,
        delivery: &Self::Delivery,
        reason: &str,
        detail: &str,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Whether deliveries can still be acknowledged. If not, the broker delivers the group again.
    fn is_open(&self) -> bool;
}

struct Received<D> {
    delivery: D,
    event: Event,
}

/// A message that is to be set aside as soon as an alarm of the broker is over. It stays unacknowledged.
pub struct Held<D> {
    delivery: D,
    reason: String,
    detail: String,
}

/// How fast a group was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    Normal,
    /// The group was too large to be applied in time, and was divided. The next one should be smaller.
    TooSlow,
}

/// Applies a group in one transaction and acknowledges it with one answer. A group that takes too long is halved. If it
/// fails otherwise, each event is tried alone, so that one bad message does not block the rest; a message that can never
/// be applied becomes a dead letter.
///
/// # Errors
/// When the channel fails, when the handler was not available for [`HOLD_DURATION`], or when `stop` comes during a
/// temporary failure: unacknowledged messages are delivered again, to this consumer or to another.
pub async fn settle<C: DeliveryChannel>(
    channel: &mut C,
    handler: &impl Handler,
    available: &Availability,
    queue: &'static str,
    held: &mut Vec<Held<C::Delivery>>,
    deliveries: Vec<C::Delivery>,
    stop: &CancellationToken,
) -> Result<Pace, Error> {
    Settling { channel, handler, available, queue, held, stop }.settle(deliveries).await
}

/// Sets aside what an earlier group had to hold, as far as the broker takes it.
///
/// # Errors
/// When the channel fails.
pub async fn set_aside_held<C: DeliveryChannel>(
    channel: &mut C,
    queue: &'static str,
    held: &mut Vec<Held<C::Delivery>>,
) -> Result<(), Error> {
    while let Some(Held { delivery, reason, detail }) = held.first() {
        match set_aside(channel, queue, delivery, reason, detail).await {
            Ok(()) => drop(held.remove(0)),
            Err(Error::Blocked) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Publishes the copy, then acknowledges: a crash in between leaves the message in both queues, which loses nothing.
async fn set_aside<C: DeliveryChannel>(
    channel: &mut C,
    queue: &'static str,
    delivery: &C::Delivery,
    reason: &str,
    detail: &str,
) -> Result<(), Error> {
    channel.publish_dead_letter(delivery, reason, detail).await?;
    crash_point("dead-letter-kept");
    channel.acknowledge(delivery, false).await?;
    metrics::counter!("inbox_dead_lettered_total", "reason" => reason.to_owned()).increment(1);
    let message_id = channel.incoming(delivery).message_id;
    tracing::error!(queue, message_id, reason, detail, "message set aside as a dead letter");
    Ok(())
}

struct Settling<'a, C: DeliveryChannel, H> {
    channel: &'a mut C,
    handler: &'a H,
    available: &'a Availability,
    queue: &'static str,
    held: &'a mut Vec<Held<C::Delivery>>,
    stop: &'a CancellationToken,
}

impl<C: DeliveryChannel, H: Handler> Settling<'_, C, H> {
    async fn settle(&mut self, deliveries: Vec<C::Delivery>) -> Result<Pace, Error> {
        let mut received = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            match self.channel.incoming(&delivery).decode() {
                Ok(event) => received.push(Received { delivery, event }),
                Err(rejection) => {
                    self.set_aside(delivery, rejection.reason(), rejection.to_string()).await?;
                }
            }
        }
        let mut pace = Pace::Normal;
        // The next group is the last one here, so that events are applied in order.
        let mut groups = vec![received];
        while let Some(mut group) = groups.pop() {
            let events: Vec<_> = group.iter().map(|received| received.event.clone()).collect();
            if events.is_empty() {
                continue;
            }
            crash_point("group-received");
            match self.apply(&events).await? {
                Ok(()) => {
                    self.acknowledge(&group).await?;
                    crash_point("group-acknowledged");
                }
                Err(failure) if events.len() == 1 => {
                    for received in group {
                        self.isolate(received, &failure).await?;
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
                    groups.extend([second, group]);
                }
                // One event makes the others fail: try each alone.
                Err(_) => groups.extend(group.into_iter().rev().map(|received| vec![received])),
            }
        }
        Ok(pace)
    }

    /// Calls the handler, and repeats while the failure is temporary. The group is kept meanwhile: returning it to the
    /// queue would use up its delivery limit. But not for ever: only one instance receives messages, and another one may
    /// reach the database that this one does not reach. The inner error is never temporary.
    async fn apply(&self, events: &[Event]) -> Result<Result<(), Failure>, Error> {
        let applied = tokio::select! {
            applied = self.apply_while_held(events) => applied,
            reason = self.unavailable() => Err(Error::Unavailable(reason)),
        };
        metrics::gauge!("inbox_applying_seconds", "queue" => self.queue).set(0.0);
        applied
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

    async fn apply_while_held(&self, events: &[Event]) -> Result<Result<(), Failure>, Error> {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        let mut waiting = false;
        loop {
            // A panic is the handler's failure, not the end of the process.
            let applying = AssertUnwindSafe(self.handler.apply(events)).catch_unwind();
            let outcome = match timeout(HANDLER_DEADLINE, applying).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) => Err(Failure::Unexpected("the handler panicked".into())),
                Err(_) => Err(Failure::TooSlow("the handler took too long".into())),
            };
            match outcome {
                Ok(_) => return Ok(Ok(())),
                // What took too long without its database is not the group's fault. One event cannot be halved.
                Err(Failure::TooSlow(cause)) if events.len() > 1 && (self.available)().is_ok() => {
                    return Ok(Err(Failure::TooSlow(cause)));
                }
                Err(Failure::Temporary(cause) | Failure::TooSlow(cause)) => {
                    if !waiting {
                        waiting = true;
                        let events = events.len();
                        tracing::warn!(queue = self.queue, cause, events, "failed to apply a group; waiting");
                    }
                    // A stop, or a lost connection, ends the wait: the group is delivered again.
                    if self.stop.run_until_cancelled(sleep(backoff.next_wait())).await.is_none()
                        || !self.channel.is_open()
                    {
                        return Err(Error::Silent(HANDLER_DEADLINE, "applying a group"));
                    }
                }
                Err(failure) => return Ok(Err(failure)),
            }
        }
    }

    /// Acknowledges a group. With one answer, if every message up to its last one is committed or set aside.
    async fn acknowledge(&mut self, group: &[Received<C::Delivery>]) -> Result<(), Error> {
        if self.held.is_empty() {
            let Some(last) = group.last() else { return Ok(()) };
            return self.channel.acknowledge(&last.delivery, true).await;
        }
        for received in group {
            self.channel.acknowledge(&received.delivery, false).await?;
        }
        Ok(())
    }

    /// Sets aside an event that cannot be applied: at once if the failure is permanent, else after a few more tries.
    async fn isolate(&mut self, received: Received<C::Delivery>, failure: &Failure) -> Result<(), Error> {
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
                Ok(()) => return self.acknowledge(&[received]).await,
                Err(next) => {
                    (detail, is_permanent) = (next.to_string(), matches!(next, Failure::Permanent(_)));
                }
            }
        }
        let reason = if is_permanent { "permanent" } else { "unexpected" };
        self.set_aside(received.delivery, reason, detail).await
    }

    /// Sets a message aside, or holds it while the broker is blocked: the messages behind it are not to blame, and an alarm
    /// needs consumers that go on.
    async fn set_aside(&mut self, delivery: C::Delivery, reason: &str, detail: String) -> Result<(), Error> {
        match set_aside(self.channel, self.queue, &delivery, reason, &detail).await {
            Err(Error::Blocked) => {
                tracing::warn!(
                    queue = self.queue,
                    reason,
                    detail,
                    "the broker is blocked; holding a message to set aside"
                );
                self.held.push(Held { delivery, reason: reason.to_owned(), detail });
                Ok(())
            }
            done => done,
        }
    }
}
