use std::time::Duration;

use broker::answers::{Answer, decide};
use events::transport::{Away, Outcome, Outgoing, Publisher, Refusal};
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    confirms::{Ending, Fate, answers},
    fault::Fault,
    mutant::Mutant,
    queues::Message,
    world::{Owner, State},
};

/// The default of `ORDERS_CONFIRM_DEADLINE`.
const CONFIRM_DEADLINE: Duration = Duration::from_secs(10);

/// A publishing connection to the broker in memory. What its answers mean is left to the real `answers::decide`.
pub(crate) struct MemoryPublisher {
    owner: Owner,
    /// The epoch in which the connection was opened.
    open: Option<u64>,
    /// Only for the mutant that renames what it tries again.
    tried: Vec<Uuid>,
}

impl MemoryPublisher {
    pub(crate) fn new(owner: Owner) -> Self {
        Self { owner, open: None, tried: Vec::new() }
    }
}

impl Publisher for MemoryPublisher {
    async fn ready(&mut self) -> Result<(), Away> {
        self.owner.pause("is the broker there").await;
        let mut state = self.owner.world.lock();
        if self.open.is_some_and(|epoch| epoch != state.broker.epoch) {
            self.open = None;
            return Err(Away("the connection was lost".into()));
        }
        if self.open.is_none() {
            if state.broker_is_away() {
                return Err(Away("simulated".into()));
            }
            state.declare();
            self.open = Some(state.broker.epoch);
        }
        Ok(())
    }

    async fn publish(&mut self, batch: &[Outgoing]) -> Vec<Outcome> {
        let renamed = self.renamed(batch);
        let batch = renamed.as_slice();
        if self.owner.world.is(Mutant::MarkBeforeConfirm) && self.owner.world.lock().dice.one_in(10) {
            return vec![Outcome::Confirmed; batch.len()];
        }
        self.owner.pause("publish").await;
        let fates = self.send(batch).await;
        self.owner.pause("everything is sent").await;
        let (answers, wait) = self.listen(&fates);
        sleep(wait).await;
        let outcomes = self.decided(batch, &answers);
        {
            let mut state = self.owner.world.lock();
            let answered = batch.iter().zip(&outcomes);
            let open = answered
                .filter(|(_, outcome)| **outcome != Outcome::Confirmed)
                .map(|(message, _)| message.id);
            let open: Vec<_> = open.collect();
            state.judge.allow_duplicates(open.iter().copied());
            state.note(self.owner.who, "heard", open.len() as u128, || {
                batch
                    .iter()
                    .zip(&outcomes)
                    .map(|(message, outcome)| format!("{} {outcome:?} ", message.id))
                    .collect()
            });
        }
        // As the real one does: late confirms must not be taken for the next batch's, and connecting declares anew.
        let give_up =
            |outcome: &Outcome| matches!(outcome, Outcome::Unknown | Outcome::Refused(Refusal::Unroutable));
        if outcomes.iter().any(give_up) {
            self.open = None;
        }
        self.owner.pause("the confirms are there").await;
        outcomes
    }
}

impl MemoryPublisher {
    /// Sends a batch, with a pause somewhere in the middle of it.
    async fn send(&mut self, batch: &[Outgoing]) -> Vec<Fate> {
        let (middle, cut) = {
            let mut state = self.owner.world.lock();
            let middle = state.dice.one_in(3).then(|| state.dice.between(0, batch.len()));
            let cut = state.strikes(Fault::PublisherCut).then(|| state.dice.between(0, batch.len()));
            (middle, cut)
        };
        let mut fates = Vec::with_capacity(batch.len());
        for (index, message) in batch.iter().enumerate() {
            if middle == Some(index) {
                self.owner.pause("half is sent").await;
            }
            let mut state = self.owner.world.lock();
            if cut == Some(index) {
                self.open = None;
            }
            let there = self.open == Some(state.broker.epoch) && !state.broker_is_away();
            fates.push(if there { route(&mut state, message) } else { lose(&mut state, message) });
        }
        // The connection is gone, and no answer comes over it, whatever the broker did.
        if cut.is_some() {
            self.open = None;
        }
        fates
    }

    /// What is heard, and how long that takes.
    fn listen(&self, fates: &[Fate]) -> (Vec<Answer>, Duration) {
        let mut state = self.owner.world.lock();
        let state = &mut *state;
        let connected = self.open == Some(state.broker.epoch);
        // Trouble seldom comes alone: where messages come back, confirms are lost and late more often too.
        let chances = if fates.iter().any(|fate| matches!(fate, Fate::Returned(_))) { 4 } else { 1 };
        let mut any = |fault| (0..chances).any(|_| state.strikes(fault));
        let (lost, late) = (any(Fault::ConfirmLost), any(Fault::ConfirmDelayed));
        let (ending, wait) = if !connected || lost {
            (Ending::Cut, state.dice.millis(0, 20))
        } else if late {
            if state.dice.one_in(2) {
                (Ending::Deadline, CONFIRM_DEADLINE)
            } else {
                (Ending::Whole, state.dice.part_of(CONFIRM_DEADLINE))
            }
        } else if state.broker.slow {
            (Ending::Whole, state.dice.millis(2_000, 8_000))
        } else {
            (Ending::Whole, state.dice.millis(0, 3))
        };
        (answers(state, fates, ending), wait)
    }

    fn decided(&self, batch: &[Outgoing], answers: &[Answer]) -> Vec<Outcome> {
        if self.owner.world.is(Mutant::ConfirmsOff) {
            return vec![Outcome::Confirmed; batch.len()];
        }
        if self.owner.world.is(Mutant::ReturnTrustedToItsConfirm) {
            return answers.iter().map(|answer| trusting(*answer, returned(*answer).is_some())).collect();
        }
        if self.owner.world.is(Mutant::SilenceIgnored) {
            let came_back: Vec<_> = answers.iter().filter_map(|answer| returned(*answer)).collect();
            let outcome =
                |(message, answer): (&Outgoing, &Answer)| trusting(*answer, came_back.contains(&message.id));
            return batch.iter().zip(answers).map(outcome).collect();
        }
        decide(batch, answers)
    }

    fn renamed(&mut self, batch: &[Outgoing]) -> Vec<Outgoing> {
        if !self.owner.world.is(Mutant::NewIdPerAttempt) {
            return batch.to_vec();
        }
        let mut renamed = batch.to_vec();
        for message in &mut renamed {
            if self.tried.contains(&message.id) {
                let id = self.owner.world.lock().dice.id();
                let body =
                    String::from_utf8_lossy(&message.body).replace(&message.id.to_string(), &id.to_string());
                (message.id, message.body) = (id, body.into_bytes());
            } else {
                self.tried.push(message.id);
            }
        }
        renamed
    }
}

fn returned(answer: Answer) -> Option<Uuid> {
    match answer {
        Answer::Ack { returned } | Answer::Nack { returned } => returned,
        Answer::TooLarge | Answer::Silence => None,
    }
}

/// For the mutants: what an answer would mean if it could be taken by itself.
fn trusting(answer: Answer, came_back: bool) -> Outcome {
    match answer {
        Answer::TooLarge => Outcome::Refused(Refusal::TooLarge),
        Answer::Silence => Outcome::Unknown,
        _ if came_back => Outcome::Refused(Refusal::Unroutable),
        Answer::Ack { .. } => Outcome::Confirmed,
        Answer::Nack { .. } => Outcome::Refused(Refusal::Nacked),
    }
}

/// What the broker does with one message that has reached it.
fn route(state: &mut State, message: &Outgoing) -> Fate {
    if state.broker.too_large.contains(&message.id) {
        return Fate::TooLarge;
    }
    if state.broker.is_unbound(message.id) {
        return Fate::Returned(message.id);
    }
    let refused = state.broker.always_refused.contains(&message.id);
    if refused || state.strikes(Fault::Nacked) {
        // One queue may have taken what another refused.
        let into = state.dice.pick(&[&[][..], &[], &[0], &[1], &[0, 1]]);
        state.enqueue(&copy_of(message), into);
        return Fate::Refused;
    }
    state.enqueue(&copy_of(message), &[0, 1]);
    if state.strikes(Fault::DuplicateDelivered) {
        state.judge.allow_duplicates([message.id]);
        state.enqueue(&copy_of(message), &[0, 1]);
    }
    Fate::Taken
}

/// What becomes of a message on a broken connection: mostly nothing, and sometimes it arrives much later.
fn lose(state: &mut State, message: &Outgoing) -> Fate {
    if !state.broker.too_large.contains(&message.id) && state.strikes(Fault::LateArrival) {
        let at = state.now + Duration::from_millis(2_000);
        state.broker.late.push((at, copy_of(message)));
    }
    Fate::Lost
}

fn copy_of(message: &Outgoing) -> Message {
    Message {
        id: message.id,
        body: message.body.as_slice().into(),
        traceparent: message.traceparent.clone(),
        earlier_deliveries: 0,
    }
}
