//! The transitions of the consumers, and the broker's side of consuming.

use crate::{
    action::Action,
    events::{Event, Events, older_than},
    invariant::Invariant,
    mutant::Mutant,
    state::{Consumer, State},
    system::System,
};

impl<const RELAYS: usize, const CHANNELS: usize> System<RELAYS, CHANNELS> {
    pub(crate) fn broker_actions(&self, state: &State<RELAYS, CHANNELS>, actions: &mut Vec<Action>) {
        actions.extend(state.late.iter().map(Action::ArriveLate));
        actions.extend(state.enqueued.iter().map(Action::Duplicate));
    }

    pub(crate) fn consumer_actions(
        &self,
        state: &State<RELAYS, CHANNELS>,
        channel: usize,
        actions: &mut Vec<Action>,
    ) {
        let consumer = &state.consumers[channel];
        if consumer.place == 0 {
            actions.push(Action::Subscribe(channel));
        } else {
            actions.push(Action::Close(channel));
        }
        if (consumer.place > 0 && !consumer.is_gone) || self.is_unbounded() {
            actions.push(Action::CrashConsumer(channel));
        }
        if consumer.is_gone {
            return;
        }
        if consumer.is_applying {
            actions.extend([Action::Apply(channel), Action::ApplyUnknown(channel)]);
        } else if consumer.next().is_some() {
            // Transactions of one consumer run one after the other: they lock the inbox.
            if !state.consumers.iter().any(|other| other.is_applying) {
                actions.push(Action::Dedupe(channel));
            }
            actions.push(Action::SetAside(channel));
        }
        let may_acknowledge =
            consumer.settled > 0 || (!consumer.delivered.is_empty() && self.is(Mutant::AckBeforeCommit));
        if consumer.place > 0 && may_acknowledge {
            actions.push(Action::Acknowledge(channel));
        }
    }

    pub(crate) fn consume(&self, state: &mut State<RELAYS, CHANNELS>, action: Action) {
        match action {
            Action::Dedupe(channel) => self.dedupe(state, channel),
            Action::Apply(channel) => {
                apply(state, channel);
                settle(&mut state.consumers[channel]);
            }
            Action::ApplyUnknown(channel) => {
                apply(state, channel);
                state.consumers[channel].is_applying = false;
            }
            Action::SetAside(channel) => {
                let consumer = &mut state.consumers[channel];
                state.set_aside = state.set_aside.or(Events::from_iter(consumer.next()));
                settle(consumer);
            }
            Action::Acknowledge(channel) => {
                let consumer = &mut state.consumers[channel];
                let event = consumer.delivered.pop_front();
                consumer.settled = consumer.settled.saturating_sub(1);
                if !state.settled().contains(event) {
                    state.violate(Invariant::AcknowledgedBeforeEffect);
                }
            }
            Action::Close(channel) => close(state, channel),
            Action::Subscribe(channel) => {
                let youngest = state.consumers.iter().map(|consumer| consumer.place).max().unwrap_or(0);
                state.consumers[channel] = Consumer { place: youngest + 1, ..Consumer::default() };
            }
            Action::CrashConsumer(channel) => {
                let consumer = &mut state.consumers[channel];
                consumer.forget();
                consumer.is_gone = consumer.place > 0;
                if consumer.place == 0 {
                    *consumer = Consumer::default();
                }
            }
            _ => {}
        }
    }

    /// Delivers what the prefetch allows: the broker does so in the same moment as it enqueues, closes or acknowledges.
    /// Messages that were returned come first, in the order in which they were returned.
    pub(crate) fn deliver(&self, state: &mut State<RELAYS, CHANNELS>) {
        while !(state.returned.is_empty() && state.queue.is_empty()) {
            let ready = |(channel, consumer): &(usize, &mut Consumer)| {
                // Single active consumer: only the oldest open channel gets messages.
                let is_active =
                    consumer.place == 1 || (consumer.place > 1 && self.is(Mutant::CompetingConsumers));
                is_active && consumer.delivered.len() < self.prefetch(*channel)
            };
            // Competing consumers get messages in turn.
            let consumers = state.consumers.iter_mut().enumerate().filter(ready);
            let next = consumers.min_by_key(|(_, consumer)| consumer.delivered.len());
            let Some((_, consumer)) = next else { return };
            let from = if state.returned.is_empty() { &mut state.queue } else { &mut state.returned };
            consumer.delivered.push_back(from.pop_front());
        }
    }

    /// How many unacknowledged messages the broker delivers to a consumer.
    fn prefetch(&self, channel: usize) -> usize {
        if self.is(Mutant::UnequalPrefetch) { self.prefetch.saturating_sub(channel) } else { self.prefetch }
    }

    /// Inserts the id of the next delivery into the inbox: it is new, or the delivery is a duplicate. If an older event of
    /// its aggregate is a dead letter, it is set aside behind that one.
    fn dedupe(&self, state: &mut State<RELAYS, CHANNELS>, channel: usize) {
        let Some(event) = state.consumers[channel].next() else { return };
        if state.inbox.contains(event) {
            return settle(&mut state.consumers[channel]);
        }
        let is_behind = !older_than(event).and(state.set_aside).is_empty();
        if is_behind && !self.is(Mutant::LaterEventsApplied) {
            state.set_aside.insert(event);
            return settle(&mut state.consumers[channel]);
        }
        state.consumers[channel].is_applying = true;
        if self.is(Mutant::DedupeOutsideTransaction) {
            state.inbox.insert(event);
        }
    }
}

/// The next delivery needs nothing more than an acknowledgement.
fn settle(consumer: &mut Consumer) {
    consumer.settled += 1;
    consumer.is_applying = false;
    // Behind a closed channel there is nothing to acknowledge.
    if consumer.place == 0 && consumer.next().is_none() {
        *consumer = Consumer::default();
    }
}

/// Commits the dedupe row and the effect together.
fn apply<const R: usize, const C: usize>(state: &mut State<R, C>, channel: usize) {
    let Some(event) = state.consumers[channel].next() else { return };
    check_effect(state, event);
    state.inbox.insert(event);
    state.applied.insert(event);
}

fn check_effect<const R: usize, const C: usize>(state: &mut State<R, C>, event: Event) {
    if !state.committed.contains(event) {
        state.violate(Invariant::AppliedUncommitted);
    }
    if state.applied.contains(event) {
        state.violate(Invariant::AppliedTwice);
    }
    if !older_than(event).without(state.applied).is_empty() {
        state.violate(Invariant::AppliedOutOfOrder);
    }
}

/// Closes a channel. An instance that is not gone is a zombie until it notices.
fn close<const R: usize, const C: usize>(state: &mut State<R, C>, channel: usize) {
    let closed = state.consumers[channel];
    state.returned.append(closed.delivered);
    for consumer in &mut state.consumers {
        consumer.place -= u8::from(consumer.place > closed.place);
    }
    let consumer = &mut state.consumers[channel];
    consumer.place = 0;
    if consumer.is_gone || consumer.next().is_none() {
        *consumer = Consumer::default();
    }
}
