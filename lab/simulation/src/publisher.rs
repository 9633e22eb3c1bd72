use std::time::Duration;

use flaws::{Flaw, confirms::decide};
use messaging::{BrokerUnavailable, Outgoing, PublishOutcome, Publisher, Refusal, confirms::Confirm};
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    broker_actions::{declare_bindings, enqueue},
    confirms::{AnswersEnd, Routing, draw_confirms},
    fault::Fault,
    partitions::restart_with_other_partitions,
    process::Process,
    queue::Message,
    state::State,
};

/// The default of `ORDERS_CONFIRM_DEADLINE`.
const CONFIRM_DEADLINE: Duration = Duration::from_secs(10);

/// When a message arrives that was sent over a broken connection.
const LATE_ARRIVAL_DELAY: Duration = Duration::from_secs(2);

/// A publishing connection to the broker in memory. The real `confirms::decide` decides what the confirms mean.
pub(crate) struct MemoryPublisher {
    process: Process,
    /// Its number of partitions.
    partitions: u8,
    /// The epoch in which the connection was opened.
    open: Option<u64>,
    /// The ids that were sent before: only with `new-id-per-attempt`.
    tried: Vec<Uuid>,
}

impl MemoryPublisher {
    pub(crate) fn new(process: Process, partitions: u8) -> Self {
        Self { process, partitions, open: None, tried: Vec::new() }
    }
}

impl Publisher for MemoryPublisher {
    async fn ready(&mut self) -> Result<(), BrokerUnavailable> {
        self.process.scheduling_point("check the connection").await;
        restart_with_other_partitions(&self.process, self.partitions).await;
        let mut state = self.process.world.lock();
        if self.open.is_some_and(|epoch| epoch != state.broker.epoch) {
            self.open = None;
            return Err(BrokerUnavailable("the connection was lost".into()));
        }
        if self.open.is_none() {
            if state.broker_is_unavailable() || !state.broker.accepts(self.partitions) {
                return Err(BrokerUnavailable("injected".into()));
            }
            declare_bindings(&mut state);
            self.open = Some(state.broker.epoch);
        }
        Ok(())
    }

    async fn publish(&mut self, batch: &[&Outgoing]) -> Vec<PublishOutcome> {
        let batch = self.with_mutated_ids(batch);
        let batch = &*batch.iter().collect::<Vec<_>>();
        if self.process.world.has(Flaw::MarkBeforeConfirm) && self.process.world.lock().random.one_in(10) {
            return vec![PublishOutcome::Confirmed; batch.len()];
        }
        *self.process.world.lock().sent.entry(self.process.actor).or_default() += batch.len();
        self.process.scheduling_point("publish a batch").await;
        let routings = self.send(batch).await;
        self.process.scheduling_point("after sending a batch").await;
        let (confirms, wait) = self.draw_answers(&routings);
        sleep(wait).await;
        let outcomes = decide(self.process.world.flaw, batch, &confirms);
        self.record(batch, &outcomes);
        // As in `rabbitmq::ConfirmingPublisher`: late confirms would be counted for the next batch, and after a return the
        // bindings are declared again.
        if outcomes.contains(&PublishOutcome::Unknown) {
            self.open = None;
        } else if outcomes.contains(&PublishOutcome::Refused(Refusal::Unroutable)) {
            self.declare_again();
        }
        self.process.scheduling_point("after the confirms").await;
        outcomes
    }
}

impl MemoryPublisher {
    fn declare_again(&self) {
        let state = &mut *self.process.world.lock();
        if state.broker.accepts(self.partitions) {
            declare_bindings(state);
        }
    }

    /// Sends a batch, perhaps with a scheduling point in the middle of it.
    async fn send(&mut self, batch: &[&Outgoing]) -> Vec<Routing> {
        let (scheduled, disconnected) = {
            let mut state = self.process.world.lock();
            let scheduled = state.random.one_in(3).then(|| state.random.between(0, batch.len()));
            let disconnected =
                state.injects(Fault::PublisherDisconnected).then(|| state.random.between(0, batch.len()));
            (scheduled, disconnected)
        };
        let mut routings = Vec::with_capacity(batch.len());
        for (index, message) in batch.iter().enumerate() {
            if scheduled == Some(index) {
                self.process.scheduling_point("in the middle of a batch").await;
            }
            let mut state = self.process.world.lock();
            if disconnected == Some(index) {
                self.open = None;
            }
            let reaches_broker = self.open == Some(state.broker.epoch) && !state.broker_is_unavailable();
            routings.push(if reaches_broker {
                route(&mut state, &first_delivery(message, self.partitions))
            } else {
                lose(&mut state, first_delivery(message, self.partitions))
            });
        }
        // Without a connection no answer arrives, whatever the broker did.
        if disconnected.is_some() {
            self.open = None;
        }
        routings
    }

    /// Draws the confirms of a batch, and how long they take.
    fn draw_answers(&self, routings: &[Routing]) -> (Vec<Confirm>, Duration) {
        let mut state = self.process.world.lock();
        let state = &mut *state;
        let connected = self.open == Some(state.broker.epoch);
        // Lost and late confirms are more frequent in batches with returns: the combination is where bugs are likely.
        let has_return = routings.iter().any(|routing| matches!(routing, Routing::Returned(_)));
        let mut injects =
            |fault, chances| (0..if has_return { chances } else { 1 }).any(|_| state.injects(fault));
        let (lost, late) = (injects(Fault::ConfirmLost, 4), injects(Fault::ConfirmDelayed, 12));
        let (end, wait) = if !connected || lost {
            (AnswersEnd::Disconnected, state.random.millis(0, 20))
        } else if late {
            if state.random.one_in(2) {
                (AnswersEnd::Deadline, CONFIRM_DEADLINE)
            } else {
                (AnswersEnd::Complete, state.random.part_of(CONFIRM_DEADLINE))
            }
        } else if state.broker.slow {
            (AnswersEnd::Complete, state.random.millis(2_000, 8_000))
        } else {
            (AnswersEnd::Complete, state.random.millis(0, 3))
        };
        (draw_confirms(state, routings, end), wait)
    }

    /// Adds the outcomes to the history. The relay publishes again what is not confirmed.
    fn record(&self, batch: &[&Outgoing], outcomes: &[PublishOutcome]) {
        let mut state = self.process.world.lock();
        let outcomes = || batch.iter().zip(outcomes);
        let unconfirmed = outcomes().filter(|(_, outcome)| **outcome != PublishOutcome::Confirmed);
        state.judge.allow_duplicates(unconfirmed.map(|(message, _)| message.id));
        state.note(self.process.actor, "outcomes", || {
            outcomes().map(|(message, outcome)| format!("{} {outcome:?} ", message.id)).collect()
        });
    }

    /// Returns the batch; with `new-id-per-attempt`, each message that was sent before gets a new id.
    fn with_mutated_ids(&mut self, batch: &[&Outgoing]) -> Vec<Outgoing> {
        let mut batch: Vec<_> = batch.iter().copied().cloned().collect();
        if !self.process.world.has(Flaw::NewIdPerAttempt) {
            return batch;
        }
        for message in &mut batch {
            if self.tried.contains(&message.id) {
                let id = self.process.world.lock().random.id();
                let body =
                    String::from_utf8_lossy(&message.body).replace(&message.id.to_string(), &id.to_string());
                (message.id, message.body) = (id, body.into_bytes());
            } else {
                self.tried.push(message.id);
            }
        }
        batch
    }
}

/// The broker handles one message that has reached it.
fn route(state: &mut State, message: &Message) -> Routing {
    if state.broker.too_large.contains(&message.id) {
        return Routing::TooLarge;
    }
    if state.broker.is_unbound(message) || state.broker.always_refused.contains(&message.id) {
        return Routing::Returned(message.id);
    }
    if state.injects(Fault::Nacked) {
        // One queue may have accepted what another refused.
        let services = state.random.pick(&[&[][..], &[], &[0], &[1], &[0, 1]]);
        enqueue(state, message, services);
        return Routing::Nacked;
    }
    enqueue(state, message, &[0, 1]);
    if state.injects(Fault::DuplicateDelivered) {
        state.judge.allow_duplicates([message.id]);
        enqueue(state, message, &[0, 1]);
    }
    Routing::Enqueued
}

/// A message is sent over a broken connection: it is lost, or it arrives much later.
fn lose(state: &mut State, message: Message) -> Routing {
    if !state.broker.too_large.contains(&message.id) && state.injects(Fault::LateArrival) {
        let at = state.now + LATE_ARRIVAL_DELAY;
        state.broker.late.push((at, message));
    }
    Routing::Lost
}

fn first_delivery(message: &Outgoing, partitions: u8) -> Message {
    Message {
        id: message.id,
        message_id: message.id.to_string(),
        body: message.body.as_slice().into(),
        traceparent: message.traceparent.clone(),
        lane: message.lane,
        partitions,
        earlier_deliveries: 0,
    }
}
