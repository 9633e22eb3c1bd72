//! What happens to a group of deliveries. The rule that everything here serves: *commit, then acknowledge*.

use std::{collections::HashSet, future::Future, sync::Arc};

use events::Event;
use messaging::{DeadLetter, DeadLetterStore, Failure, Handler, Incoming, crash_points::crash_point};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::Error;

/// An event that was delivered this often without an answer may be what crashes its consumer. It is applied alone, and each
/// attempt is recorded before it begins.
const SUSPICIOUS_DELIVERIES: u32 = 2;

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

pub(crate) struct Received<D> {
    pub(crate) delivery: D,
    pub(crate) event: Event,
}

/// What to do next with a part of a group. The parts are settled in the order in which they were received: an event must
/// not be set aside before the older events of its aggregate are applied, nor applied before they are set aside.
pub(crate) enum Step<D> {
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
    /// When the channel fails, when the handler was not available for too long, or when `stop` comes during a
    /// temporary failure: unacknowledged messages are delivered again, to this consumer or to another.
    pub async fn settle(&mut self, deliveries: Vec<C::Delivery>) -> Result<Pace, Error> {
        // The next step is the last one here.
        let mut steps = self.decode(deliveries);
        steps.reverse();
        let settled = self.take(&mut steps).await;
        // An error has ended an attempt that is still among the steps, and this process has survived it. Without its
        // database it could only hold the messages for longer.
        if settled.is_err() && (self.available)().is_ok() {
            for step in steps {
                if let Step::EndAttempts(event) = step {
                    self.end_attempts(event).await;
                }
            }
        }
        settled
    }

    /// Takes one step after the other. After an error the remaining ones are left.
    async fn take(&mut self, steps: &mut Vec<Step<C::Delivery>>) -> Result<Pace, Error> {
        let mut pace = Pace::Normal;
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

    pub(crate) async fn apply(&self, events: &[Event]) -> Result<Result<(), Failure>, Error> {
        let applying = || async { self.handler.apply(events).await.map(drop) };
        self.retry("apply a group", events.len(), applying).await
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
