//! The rules of the consumers, and the broker's side of consuming.

use flaws::Flaw;

use crate::{
    action::Action,
    events::{Event, older_than},
    invariant::Invariant,
    state::{Consumer, State},
    system::{Steps, System},
};

impl<const RELAYS: usize, const CHANNELS: usize> Steps<'_, RELAYS, CHANNELS> {
    pub(crate) fn of_consumer(&mut self, channel: usize) {
        let (system, state) = (self.system, self.from);
        let consumer = &state.consumers[channel];
        if consumer.place == 0 {
            self.add(Action::Subscribe(channel), |next| {
                let youngest = next.consumers.iter().map(|consumer| consumer.place).max().unwrap_or(0);
                next.consumers[channel] = Consumer { place: youngest + 1, ..Consumer::default() };
            });
        } else {
            self.add_if_allowed(Action::Close(channel), !consumer.is_gone, |next| close(next, channel));
        }
        if (consumer.place > 0 && !consumer.is_gone) || system.is_unbounded() {
            self.add_fault(Action::CrashConsumer(channel), |next| next.consumers[channel].crash());
        }
        if consumer.is_gone {
            return;
        }
        if let Some(event) = consumer.next() {
            if consumer.is_applying {
                self.add(Action::Apply(channel, event), |next| {
                    apply(next, event);
                    settle(&mut next.consumers[channel]);
                });
                self.add_fault(Action::ApplyUnknown(channel, event), |next| {
                    apply(next, event);
                    next.consumers[channel].is_applying = false;
                });
            } else {
                // Transactions of one consumer run one after the other: they lock the inbox.
                if !state.consumers.iter().any(|other| other.is_applying) {
                    self.add(Action::Dedupe(channel), |next| system.dedupe(next, channel, event));
                }
                self.add_fault(Action::SetAside(channel, event), |next| {
                    next.set_aside.insert(event);
                    settle(&mut next.consumers[channel]);
                });
            }
        }
        let may_acknowledge =
            consumer.settled > 0 || (!consumer.delivered.is_empty() && system.has(Flaw::AckBeforeCommit));
        if consumer.place > 0 && may_acknowledge {
            self.add(Action::Acknowledge(channel, consumer.delivered.get(0)), |next| {
                let consumer = &mut next.consumers[channel];
                let event = consumer.delivered.pop_front();
                consumer.settled = consumer.settled.saturating_sub(1);
                if !next.settled().contains(event) {
                    next.violate(Invariant::AcknowledgedBeforeEffect);
                }
            });
        }
    }
}

impl<const RELAYS: usize, const CHANNELS: usize> System<RELAYS, CHANNELS> {
    /// Delivers what the prefetch allows: the broker does so in the same moment as it enqueues, closes or acknowledges.
    /// Messages that were returned come first, in the order in which they were returned.
    pub(crate) fn deliver(&self, state: &mut State<RELAYS, CHANNELS>) {
        while !(state.returned.is_empty() && state.queue.is_empty()) {
            let ready = |(channel, consumer): &(usize, &mut Consumer)| {
                // Single active consumer: only the oldest open channel gets messages.
                let is_active =
                    consumer.place == 1 || (consumer.place > 1 && self.has(Flaw::CompetingConsumers));
                let less = if self.has(Flaw::UnequalPrefetch) { *channel } else { 0 };
                is_active && consumer.delivered.len() < self.prefetch.saturating_sub(less)
            };
            // Competing consumers get messages in turn.
            let consumers = state.consumers.iter_mut().enumerate().filter(ready);
            let next = consumers.min_by_key(|(_, consumer)| consumer.delivered.len());
            let Some((_, consumer)) = next else { return };
            let from = if state.returned.is_empty() { &mut state.queue } else { &mut state.returned };
            consumer.delivered.push_back(from.pop_front());
        }
    }

    /// Inserts the id of the next delivery into the inbox: it is new, or the delivery is a duplicate. If an older event of
    /// its aggregate is a dead letter, it is set aside behind that one.
    fn dedupe(&self, state: &mut State<RELAYS, CHANNELS>, channel: usize, event: Event) {
        if state.inbox.contains(event) {
            return settle(&mut state.consumers[channel]);
        }
        let is_behind = !older_than(event).and(state.set_aside).is_empty();
        if is_behind && !self.has(Flaw::LaterEventsApplied) {
            state.set_aside.insert(event);
            return settle(&mut state.consumers[channel]);
        }
        state.consumers[channel].is_applying = true;
        if self.has(Flaw::DedupeOutsideTransaction) {
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
fn apply<const R: usize, const C: usize>(state: &mut State<R, C>, event: Event) {
    if !state.committed.contains(event) {
        state.violate(Invariant::AppliedUncommitted);
    }
    if state.applied.contains(event) {
        state.violate(Invariant::AppliedTwice);
    }
    if !older_than(event).without(state.applied).is_empty() {
        state.violate(Invariant::AppliedOutOfOrder);
    }
    state.inbox.insert(event);
    state.applied.insert(event);
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
