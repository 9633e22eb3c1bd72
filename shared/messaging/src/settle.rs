//! What a consumer does with the deliveries that it has received. The rule that everything here serves: *commit, then
//! acknowledge*.
//!
//! [`Settling::settle`] applies as many events as possible in one transaction. It halves a group that takes too long,
//! tries each event of another failed one alone, and sets aside what can never be applied, as a dead letter. It settles
//! deliveries in their order: an event must be neither applied nor set aside before the older events of its aggregate
//! are.

use std::{
    collections::HashSet, future::Future, mem::take, panic::AssertUnwindSafe, slice, sync::Arc,
    time::Duration,
};

use events::Event;
use futures_util::FutureExt;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    Backoff, BrokerUnavailable, DeadLetter, DeadLetterStore, Failure, Handler, Incoming,
    crash_points::crash_point,
};

/// An event that was delivered this often without an answer may be what crashes its consumer: it is applied alone, and each
/// attempt is recorded before it begins.
const SUSPICIOUS_DELIVERIES: u32 = 2;

/// How many recorded attempts at an event may crash the consumer before it is set aside.
const MAX_CRASHES: u32 = 5;

/// How often an event is tried that fails for an unknown reason, before it is set aside.
const UNEXPECTED_TRIES: u32 = 5;

/// How long a consumer holds different events that fail alike. Then the broker delivers them again, together with what has arrived
/// since: if some of that can be applied, the failures were the events' own.
const ALIKE_DURATION: Duration = Duration::from_secs(15);

/// The pause before events that fail alike are tried again.
const ALIKE_PAUSE: Duration = Duration::from_secs(2);

/// The reason of an event that is set aside because of [`Failure::Behind`].
const BEHIND: &str = "behind";

/// What is tried again while the database is away.
const SAVE: &str = "save a dead letter";

/// How long a handler may take for one group.
const HANDLER_DEADLINE: Duration = Duration::from_secs(30);

/// How long a consumer keeps its messages while the handler's database is unavailable: long enough for a restart of that.
const HOLD_DURATION: Duration = Duration::from_secs(15);

/// How often it is checked whether the handler's database is available.
pub const AVAILABILITY_INTERVAL: Duration = Duration::from_millis(500);

/// Tells whether the handler can work, for example whether its database answers: the last known state, without waiting.
pub type Availability = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Where deliveries come from and where the answers go: a channel to RabbitMQ, or the simulation's.
pub trait DeliveryChannel: Send + Sync {
    /// One delivery, not acknowledged yet.
    type Delivery: Send + Sync;

    fn incoming<'a>(&'a self, delivery: &'a Self::Delivery) -> Incoming<'a>;

    /// The dead letter to be saved of a delivery that cannot be applied.
    fn dead_letter(&self, delivery: &Self::Delivery, reason: &str, detail: &str) -> DeadLetter;

    /// Acknowledges a delivery, or with `multiple` also all that came before it.
    fn acknowledge(
        &mut self,
        delivery: &Self::Delivery,
        multiple: bool,
    ) -> impl Future<Output = Result<(), BrokerUnavailable>> + Send;

    /// Has the broker move a delivery into its dead-letter queue.
    fn reject(
        &mut self,
        delivery: &Self::Delivery,
    ) -> impl Future<Output = Result<(), BrokerUnavailable>> + Send;

    /// Whether deliveries can still be acknowledged. If not, the broker delivers them again.
    fn is_open(&self) -> bool;
}

/// How fast deliveries were applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pace {
    Normal,
    /// A group was too large to be applied in time, and was divided. The next one should be smaller.
    TooSlow,
}

/// Why deliveries were left without an answer. The broker delivers them again, to this consumer or to another.
#[derive(Debug, thiserror::Error)]
pub enum Interruption {
    /// The stop came during a temporary failure.
    #[error("stopped before everything was settled")]
    Stopped,
    #[error("the channel was closed before everything was settled")]
    ChannelClosed,
    /// The handler could not work for too long.
    #[error("the database is unavailable: {0}")]
    HandlerUnavailable(String),
    /// Events of several aggregates cannot be applied, for the same unknown reason.
    #[error("different events fail alike: {0}")]
    FailAlike(String),
    #[error(transparent)]
    Broker(#[from] BrokerUnavailable),
}

/// What settles the deliveries of one channel.
pub struct Settling<'a, C, H, L> {
    pub channel: &'a mut C,
    pub handler: &'a H,
    pub letters: &'a L,
    pub available: &'a Availability,
    /// The queue, or the partition, that the deliveries come from.
    pub queue: &'a str,
    /// How the last event failed that was set aside, or waits, for an unknown reason, if none was applied since.
    pub last_unexpected: &'a mut Option<String>,
    pub stop: &'a CancellationToken,
}

impl<C: DeliveryChannel, H: Handler, L: DeadLetterStore> Settling<'_, C, H, L> {
    /// Settles deliveries in their order: applies and acknowledges them, or sets them aside. After an error, what was not
    /// settled is not acknowledged.
    pub async fn settle(&mut self, deliveries: &[C::Delivery]) -> Result<Pace, Interruption> {
        let mut pace = Pace::Normal;
        // The events of the deliveries before `index`. They are applied together, up to one that must not be among them.
        let mut events = vec![];
        for (index, delivery) in deliveries.iter().enumerate() {
            let incoming = self.channel.incoming(delivery);
            let decoded = match incoming.decode() {
                Ok(event) if incoming.earlier_deliveries < SUSPICIOUS_DELIVERIES => {
                    events.push(event);
                    continue;
                }
                decoded => decoded,
            };
            let group = &deliveries[index - events.len()..index];
            pace = pace.max(self.apply_in_order(group, &take(&mut events), &deliveries[index..]).await?);
            match decoded {
                Ok(event) => self.attempt(delivery, &event, &deliveries[index + 1..]).await?,
                Err(rejection) => {
                    self.set_aside(delivery, rejection.reason(), &rejection.to_string()).await?;
                }
            }
        }
        let group = &deliveries[deliveries.len() - events.len()..];
        Ok(pace.max(self.apply_in_order(group, &events, &[]).await?))
    }

    /// Applies and acknowledges events from the first to the last: all together, unless that takes too long or fails.
    /// `later`: the deliveries after these.
    async fn apply_in_order(
        &mut self,
        deliveries: &[C::Delivery],
        events: &[Event],
        later: &[C::Delivery],
    ) -> Result<Pace, Interruption> {
        let (mut pace, mut alike_since) = (Pace::Normal, None);
        let mut rest =
            Rest { deliveries, events, largest: events.len(), alone: 0, tries: 0, behind: HashSet::new() };
        while let (Some(delivery), Some(event)) = (rest.deliveries.first(), rest.events.first()) {
            if rest.behind.remove(&event.id) && self.set_behind(delivery).await? {
                rest.advance(1);
                continue;
            }
            let (group, last) = rest.next_group();
            crash_point("group-received");
            let applying = || self.handler.apply(group);
            match self.retry("apply a group", group.len(), applying).await? {
                Ok(applied) => {
                    self.channel.acknowledge(last, true).await?;
                    crash_point("group-acknowledged");
                    // A duplicate shows nothing: it was applied before.
                    if applied.first > 0 {
                        *self.last_unexpected = None;
                    }
                    rest.advance(group.len());
                }
                Err(Failure::Behind(events)) => rest.behind.extend(events),
                Err(failure @ Failure::TooSlow(_)) if group.len() > 1 => {
                    let (queue, events) = (self.queue, group.len());
                    tracing::warn!(queue, %failure, events, "a group took too long; halving it");
                    rest.largest = events / 2;
                    pace = Pace::TooSlow;
                }
                // One event makes the others fail: try each alone.
                Err(_) if group.len() > 1 => rest.alone = group.len(),
                Err(failure @ Failure::Permanent(_)) => {
                    self.set_aside(delivery, "permanent", &failure.to_string()).await?;
                    rest.advance(1);
                }
                Err(failure) if rest.tries + 1 == UNEXPECTED_TRIES => {
                    let text = failure.to_string();
                    if !self.others_fail_alike(&text, &rest, later).await? {
                        self.set_aside(delivery, "unexpected", &text).await?;
                        *self.last_unexpected = Some(without_numbers(&text));
                        rest.advance(1);
                        continue;
                    }
                    let queue = self.queue;
                    if alike_since.is_none() {
                        tracing::warn!(queue, %failure, "different events fail alike, so they are probably not the cause; waiting");
                    }
                    if alike_since.get_or_insert_with(Instant::now).elapsed() > ALIKE_DURATION {
                        // The next session compares its first failure with this one, even if it receives one event alone.
                        *self.last_unexpected = Some(without_numbers(&text));
                        return Err(Interruption::FailAlike(text));
                    }
                    self.stop.run_until_cancelled(sleep(ALIKE_PAUSE)).await.ok_or(Interruption::Stopped)?;
                }
                Err(failure) => {
                    rest.tries += 1;
                    let Event { id, event_type, aggregate_id, .. } = event;
                    let attempt = rest.tries + 1;
                    tracing::warn!(event_id = %id, event_type, %aggregate_id, attempt, %failure, "trying an event again");
                    // 100, 200, 400, 800 ms. The message is kept in the meantime: returned to the queue, later events
                    // of its aggregate would overtake it.
                    sleep(Duration::from_millis(50) * 2_u32.pow(rest.tries)).await;
                }
            }
        }
        Ok(pace)
    }

    /// Whether the events of other aggregates fail as the next one does, for a reason that is unknown: then it is the server's,
    /// or the deployment's, and set aside one by one the whole queue would become dead letters. One of them that can be
    /// applied shows that it is the event's own. What is applied here is a duplicate when its turn comes.
    async fn others_fail_alike(
        &self,
        failure: &str,
        rest: &Rest<'_, C::Delivery>,
        later: &[C::Delivery],
    ) -> Result<bool, Interruption> {
        let failure = without_numbers(failure);
        let mut alike = self.last_unexpected.as_ref() == Some(&failure);
        // Of an aggregate only the first event that is held: its order stays. Behind a message that cannot be read, no order
        // is known.
        let mut aggregates =
            rest.events.first().map_or_else(HashSet::new, |event| HashSet::from([event.aggregate_id]));
        let later = later.iter().map(|delivery| self.channel.incoming(delivery));
        let later =
            later.map_while(|it| Some((it.decode().ok()?, it.earlier_deliveries >= SUSPICIOUS_DELIVERIES)));
        for (event, may_crash) in rest.events.iter().skip(1).map(|event| (event.clone(), false)).chain(later)
        {
            if !aggregates.insert(event.aggregate_id) || rest.behind.contains(&event.id) {
                continue;
            }
            if may_crash && !matches!(self.count_attempt(&event).await?, Ok(begun) if begun <= MAX_CRASHES) {
                continue;
            }
            let applied =
                self.retry("apply another event", 1, || self.handler.apply(slice::from_ref(&event)));
            let applied = applied.await;
            if may_crash {
                self.survived_attempt(&event).await;
            }
            match applied? {
                Ok(applied) if applied.first > 0 => return Ok(false),
                Ok(_) => {}
                Err(other) => alike |= without_numbers(&other.to_string()) == failure,
            }
        }
        Ok(alike)
    }

    /// Applies an event that may be what crashes this process, and counts the attempt before it begins. The broker's
    /// count of deliveries does not tell: it grows for all messages that were held together with the cause.
    async fn attempt(
        &mut self,
        delivery: &C::Delivery,
        event: &Event,
        later: &[C::Delivery],
    ) -> Result<(), Interruption> {
        let Event { id, event_type, aggregate_id, .. } = event;
        let settled = match self.count_attempt(event).await {
            Err(interruption) => Err(interruption),
            Ok(Ok(begun)) if begun > MAX_CRASHES => {
                let detail = format!("its consumer crashed during {MAX_CRASHES} attempts to apply it alone");
                self.set_aside(delivery, "attempt-limit", &detail).await
            }
            Ok(counted) => {
                if let Err(failure) = counted {
                    tracing::warn!(event_id = %id, event_type, %aggregate_id, %failure, "failed to count an attempt");
                }
                let (delivery, event) = (slice::from_ref(delivery), slice::from_ref(event));
                self.apply_in_order(delivery, event, later).await.map(drop)
            }
        };
        if settled.is_ok() || (self.available)().is_ok() {
            self.survived_attempt(event).await;
        }
        settled
    }

    /// Counts an attempt that may crash this process, before it begins. Returns how many have begun since one was survived.
    async fn count_attempt(&self, event: &Event) -> Result<Result<u32, Failure>, Interruption> {
        let counting = || self.letters.begin_attempt(self.queue, event.id);
        self.retry("count an attempt", 1, counting).await
    }

    /// Records that this process has survived an attempt, whatever came of it.
    async fn survived_attempt(&self, event: &Event) {
        if let Err(failure) = self.letters.end_attempts(self.queue, event.id).await {
            tracing::warn!(event_id = %event.id, %failure, "failed to forget the attempts at an event");
        }
    }

    /// Saves a message as a dead letter, then acknowledges it: a crash in between has it delivered and saved again, which
    /// is recognized.
    async fn set_aside(
        &mut self,
        delivery: &C::Delivery,
        reason: &str,
        detail: &str,
    ) -> Result<(), Interruption> {
        let letter = self.channel.dead_letter(delivery, reason, detail);
        let saved = self.retry(SAVE, 1, || self.letters.save(&letter)).await?;
        if self.end_saving(delivery, &letter, saved).await? {
            let (queue, message_id) = (self.queue, &letter.message_id);
            tracing::error!(queue, message_id, reason, detail, "message set aside as a dead letter");
        }
        Ok(())
    }

    /// Saves an event as waiting behind a dead letter of its aggregate, then acknowledges it. `false`: it waits for none any
    /// more, and can be applied.
    async fn set_behind(&mut self, delivery: &C::Delivery) -> Result<bool, Interruption> {
        let detail = "an older event of its aggregate is a dead letter";
        let letter = self.channel.dead_letter(delivery, BEHIND, detail);
        let saved = match self.retry(SAVE, 1, || self.letters.save_behind(&letter)).await? {
            Ok(false) => return Ok(false),
            saved => saved.map(drop),
        };
        if self.end_saving(delivery, &letter, saved).await? {
            let (queue, message_id) = (self.queue, &letter.message_id);
            tracing::warn!(queue, message_id, "event set aside behind a dead letter");
        }
        Ok(true)
    }

    /// Acknowledges a message that was saved, or rejects it: the broker keeps it in the dead-letter queue, from which the
    /// collector tries to save it again and again. Returns whether it was saved.
    async fn end_saving(
        &mut self,
        delivery: &C::Delivery,
        letter: &DeadLetter,
        saved: Result<(), Failure>,
    ) -> Result<bool, Interruption> {
        let DeadLetter { message_id, reason, detail, .. } = letter;
        if let Err(failure) = saved {
            let queue = self.queue;
            tracing::error!(queue, message_id, reason, detail, %failure, "failed to save a dead letter");
            self.channel.reject(delivery).await?;
            return Ok(false);
        }
        crash_point("dead-letter-saved");
        self.channel.acknowledge(delivery, false).await?;
        metrics::counter!("inbox_dead_lettered_total", "reason" => reason.clone()).increment(1);
        Ok(true)
    }

    /// Makes attempts until one does not fail temporarily: the inner error is never temporary. The messages are kept in
    /// the meantime: returned to the queue, they would look as if they had crashed their consumer. But not forever:
    /// only one instance receives messages, and another one may reach the database.
    async fn retry<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        what: &str,
        events: usize,
        attempt: impl Fn() -> F,
    ) -> Result<Result<T, Failure>, Interruption> {
        let attempts = async {
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
                let cause = match outcome {
                    Err(Failure::Temporary(cause)) => cause,
                    // What took too long without its database is not the group's fault. One event cannot be halved.
                    Err(Failure::TooSlow(cause)) if events == 1 || (self.available)().is_err() => cause,
                    done => return Ok(done),
                };
                if !waiting {
                    waiting = true;
                    tracing::warn!(queue = self.queue, cause, events, "failed to {what}; waiting");
                }
                // A stop, or a lost connection, ends the wait: the messages are delivered again.
                if self.stop.run_until_cancelled(sleep(backoff.next_wait())).await.is_none() {
                    return Err(Interruption::Stopped);
                }
                if !self.channel.is_open() {
                    return Err(Interruption::ChannelClosed);
                }
            }
        };
        let outcome = tokio::select! {
            outcome = attempts => outcome,
            reason = self.unavailable() => Err(Interruption::HandlerUnavailable(reason)),
        };
        metrics::gauge!("inbox_applying_seconds", "queue" => self.queue.to_owned()).set(0.0);
        outcome
    }

    /// Returns when the handler has been unavailable for [`HOLD_DURATION`]. Shows in the meantime how long the attempts
    /// take.
    async fn unavailable(&self) -> String {
        let (began, mut since) = (Instant::now(), None);
        loop {
            sleep(AVAILABILITY_INTERVAL).await;
            metrics::gauge!("inbox_applying_seconds", "queue" => self.queue.to_owned())
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
}

/// A failure's text without ids, counts and times, so that the failures of different events can be compared.
fn without_numbers(failure: &str) -> String {
    let is_number = |word: &&str| word.contains(|letter: char| letter.is_ascii_digit());
    failure.split_whitespace().filter(|word| !is_number(word)).collect::<Vec<_>>().join(" ")
}

/// The events that are not settled yet, with their deliveries, and what was learned about them.
struct Rest<'a, D> {
    deliveries: &'a [D],
    events: &'a [Event],
    /// The most events of one transaction. It does not grow: what follows would be as slow.
    largest: usize,
    /// So many of the next events are applied one by one.
    alone: usize,
    /// How often the next event has failed alone.
    tries: u32,
    /// Events that are behind a dead letter of their aggregate.
    behind: HashSet<Uuid>,
}

impl<'a, D> Rest<'a, D> {
    /// The next events to apply in one transaction, at least one, and the delivery of the last of them.
    fn next_group(&self) -> (&'a [Event], &'a D) {
        let free =
            self.events.iter().skip(1).take_while(|event| !self.behind.contains(&event.id)).count() + 1;
        let size = if self.alone > 0 { 1 } else { free.min(self.largest) };
        (&self.events[..size], &self.deliveries[size - 1])
    }

    /// The next `settled` events are applied or set aside.
    fn advance(&mut self, settled: usize) {
        (self.deliveries, self.events) = (&self.deliveries[settled..], &self.events[settled..]);
        (self.alone, self.tries) = (self.alone.saturating_sub(settled), 0);
    }
}
