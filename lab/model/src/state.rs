//! The state of the model: the outbox, the relays, the queue, the consumers and the inbox.

use crate::{
    answers::Route,
    events::{Copies, EVENTS, Event, Events, older_than},
    invariant::Invariant,
};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Between two steps.
    #[default]
    Idle,
    /// Has claimed events, and publishes them wave by wave.
    Publishing,
    /// Has written its marks, and not committed them.
    Marked,
}

/// A relay and its database session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Relay {
    pub(crate) phase: Phase,
    /// The events of the step, while its session is alive and locks their lanes. A relay in a step without any is a
    /// zombie: it has lost its session and does not know.
    pub(crate) locked: Events,
    /// Claimed and not sent in any wave so far.
    pub(crate) unsent: Events,
    /// The routes of the messages of the current wave, which the relay does not know yet.
    pub(crate) wave: [Option<Route>; EVENTS],
    pub(crate) confirmed: Events,
    pub(crate) refused: Events,
    /// Only with `new-id-per-attempt`: the events that were sent before.
    pub(crate) tried: Events,
    /// Only with `cursor-over-seq`: the `seq` from which the next claim reads.
    pub(crate) cursor: u8,
    /// Only with `woken-only`: waits for a wake-up.
    pub(crate) sleeps: bool,
}

impl Relay {
    /// Ends the step. Only a flaw remembers anything.
    pub(crate) fn end_step(&mut self) {
        let Self { tried, cursor, sleeps, .. } = *self;
        *self = Self { tried, cursor, sleeps, ..Self::default() };
    }

    pub(crate) fn is_between_waves(&self) -> bool {
        self.phase == Phase::Publishing && self.wave == [None; EVENTS]
    }

    pub(crate) fn wave_has(&self, route: Route) -> bool {
        self.wave.contains(&Some(route))
    }
}

/// One channel to the queue, and the consuming instance behind it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Consumer {
    /// The place of the channel among the open ones of the queue, by age: 1 is the oldest and the active one. 0 if the
    /// broker has closed the channel. An instance does not notice that at once: it goes on with what was delivered.
    pub(crate) place: u8,
    /// The instance crashed, and the broker has not noticed it yet.
    pub(crate) is_gone: bool,
    /// Delivered and not acknowledged.
    pub(crate) delivered: Copies,
    /// How many of these are settled: applied, recognized as duplicates or set aside.
    pub(crate) settled: u8,
    /// The transaction of the next delivery is open: the dedupe row and the effect are written and not committed.
    pub(crate) is_applying: bool,
}

impl Consumer {
    /// The delivery to be settled next.
    pub(crate) fn next(&self) -> Option<Event> {
        let index = usize::from(self.settled);
        (!self.is_gone && index < self.delivered.len()).then(|| self.delivered.get(index))
    }

    /// Drops deliveries that it could only recognize as duplicates. Behind a closed channel it cannot acknowledge them.
    fn forget_settled(&mut self, inbox: Events) {
        let mut rest = Copies::default();
        for index in usize::from(self.settled)..self.delivered.len() {
            let event = self.delivered.get(index);
            if self.is_applying || !inbox.contains(event) {
                rest.push_back(event);
            }
        }
        (self.delivered, self.settled) = (rest, 0);
    }

    /// Loses the memory of the instance, and with it the open transaction.
    pub(crate) fn crash(&mut self) {
        (self.settled, self.is_applying) = (0, false);
        self.is_gone = self.place > 0;
        if self.place == 0 {
            *self = Self::default();
        }
    }
}

/// The state of the model with so many relays and channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State<const RELAYS: usize, const CHANNELS: usize> {
    /// The outbox.
    pub(crate) committed: Events,
    pub(crate) published: Events,
    pub(crate) backs_off: Events,
    pub(crate) relays: [Relay; RELAYS],
    /// Messages that were sent over a broken connection and will still arrive.
    pub(crate) late: Events,
    pub(crate) queue: Copies,
    /// Messages of the queue that lost consumers held.
    pub(crate) returned: Copies,
    pub(crate) consumers: [Consumer; CHANNELS],
    /// `processed_events`.
    pub(crate) inbox: Events,
    pub(crate) applied: Events,
    pub(crate) set_aside: Events,
    /// What the queue ever received: only for the invariants.
    pub(crate) enqueued: Events,
    /// How many faults can still be injected.
    pub(crate) faults_left: u8,
    pub(crate) violated: Option<Invariant>,
}

impl<const RELAYS: usize, const CHANNELS: usize> State<RELAYS, CHANNELS> {
    /// Nothing is written yet. If the faults are bounded, all channels are open; a history tells when one is opened.
    pub(crate) fn new(faults: Option<u8>) -> Self {
        let mut consumers = [Consumer::default(); CHANNELS];
        if faults.is_some() {
            for (consumer, place) in consumers.iter_mut().zip(1..) {
                consumer.place = place;
            }
        }
        Self {
            committed: Events::NONE,
            published: Events::NONE,
            backs_off: Events::NONE,
            relays: [Relay::default(); RELAYS],
            late: Events::NONE,
            queue: Copies::default(),
            returned: Copies::default(),
            consumers,
            inbox: Events::NONE,
            applied: Events::NONE,
            set_aside: Events::NONE,
            enqueued: Events::NONE,
            faults_left: faults.unwrap_or(0),
            violated: None,
        }
    }

    /// Keeps the first violation: later ones are often its consequences.
    pub(crate) fn violate(&mut self, invariant: Invariant) {
        self.violated.get_or_insert(invariant);
    }

    /// The queue receives a copy of an event.
    pub(crate) fn enqueue(&mut self, event: Event) {
        if !self.committed.contains(event) {
            self.violate(Invariant::PublishedUncommitted);
        }
        if !older_than(event).without(self.enqueued).is_empty() {
            self.violate(Invariant::PublishedOutOfOrder);
        }
        self.enqueued.insert(event);
        self.queue.push_back(event);
    }

    /// Events whose effect is committed, or that are in the dead letters.
    pub(crate) fn settled(&self) -> Events {
        self.applied.or(self.set_aside)
    }

    /// Replaces the state by an equivalent one, so that fewer have to be explored. What a zombie remembers counts only
    /// as far as others can notice it, and which of two equal processes does something does not count at all.
    pub(crate) fn reduce(&mut self) {
        for relay in &mut self.relays {
            if relay.phase != Phase::Idle && relay.locked.is_empty() && relay.unsent.is_empty() {
                relay.end_step();
            }
        }
        self.relays.sort_unstable();
        let inbox = self.inbox;
        for consumer in self.consumers.iter_mut().filter(|consumer| consumer.place == 0) {
            consumer.forget_settled(inbox);
        }
        self.consumers.sort_unstable();
    }

    /// Nothing is pending, and no message waits anywhere.
    pub(crate) fn is_quiescent(&self) -> bool {
        self.published == Events::ALL
            && self.settled() == Events::ALL
            && self.late.is_empty()
            && self.queue.is_empty()
            && self.returned.is_empty()
            && self.relays.iter().all(|relay| relay.phase == Phase::Idle)
            && self.consumers.iter().all(|consumer| consumer.delivered.is_empty())
    }
}
