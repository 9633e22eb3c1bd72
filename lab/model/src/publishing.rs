//! The transitions of the writers, the relays, and the broker's side of publishing.

use crate::{
    action::{Action, Sent},
    answers::{Outcome, Route},
    events::{EVENTS, Event, Events, aggregate_of, older_than},
    invariant::Invariant,
    mutant::Mutant,
    state::{Phase, Relay, State},
    system::System,
};

impl<const RELAYS: usize, const CHANNELS: usize> System<RELAYS, CHANNELS> {
    pub(crate) fn writer_actions(&self, state: &State<RELAYS, CHANNELS>, actions: &mut Vec<Action>) {
        // Transactions that change one aggregate wait for each other on its row; others commit in any order.
        for event in Events::ALL.without(state.committed).iter() {
            if older_than(event).without(state.committed).is_empty() {
                actions.push(Action::Commit(event));
                if self.is(Mutant::WokenOnly) {
                    actions.push(Action::CommitUnheard(event));
                }
            }
        }
        actions.extend(state.backs_off.iter().map(Action::EndBackoff));
    }

    pub(crate) fn relay_actions(
        &self,
        state: &State<RELAYS, CHANNELS>,
        number: usize,
        actions: &mut Vec<Action>,
    ) {
        let relay = &state.relays[number];
        if relay.phase == Phase::Idle && !relay.sleeps {
            self.claims(state, number, actions);
        }
        for event in relay.unsent.iter() {
            self.sends(relay, number, event, actions);
        }
        let (events, routes) = self.wave(relay);
        if !routes.is_empty() {
            for conclusion in self.conclusions(&routes) {
                let mut outcomes = [None; EVENTS];
                for (event, outcome) in events.iter().zip(&conclusion.outcomes) {
                    outcomes[*event] = Some(*outcome);
                }
                actions.push(Action::Conclude(number, outcomes));
            }
        }
        if relay.is_between_waves() {
            if relay.locked.is_empty() {
                actions.push(Action::EndStep(number));
            } else if relay.unsent != relay.locked || self.is_unbounded() {
                // In a recorded history the relay may have sent a wave of other events.
                actions.push(Action::Mark(number));
            }
        }
        if relay.phase == Phase::Marked {
            actions.push(Action::CommitMarks(number));
        }
        if !relay.locked.is_empty() {
            actions.push(Action::LoseSession(number));
        }
        if *relay != Relay::default() || self.is_unbounded() {
            actions.push(Action::CrashRelay(number));
        }
    }

    /// Pending, not backing off, and with no older event of its aggregate that backs off.
    fn claimable(&self, state: &State<RELAYS, CHANNELS>) -> Events {
        let is_visible = |event: Event| {
            let inserted = older_than(event).without(state.committed).is_empty();
            state.committed.contains(event) || (self.is(Mutant::DirtyRead) && inserted)
        };
        let is_held_back =
            |event| !older_than(event).and(state.backs_off).is_empty() && !self.is(Mutant::OlderEventIgnored);
        let pending = Events::ALL.without(state.published).without(state.backs_off);
        pending.iter().filter(|event| is_visible(*event) && !is_held_back(*event)).collect()
    }

    fn claims(&self, state: &State<RELAYS, CHANNELS>, number: usize, actions: &mut Vec<Action>) {
        let claimable = self.claimable(state);
        if self.is(Mutant::WokenOnly) && claimable.is_empty() {
            actions.push(Action::Sleep(number));
        }
        let locked = state.relays.iter().flat_map(|relay| relay.locked.iter());
        let locked: Events = if self.is(Mutant::SkipLockedOnRows) {
            locked.collect()
        } else {
            locked.flat_map(|event| aggregate_of(event).iter()).collect()
        };
        let cursor = usize::from(state.relays[number].cursor);
        let unread: Events = self.by_seq.into_iter().skip(cursor).collect();
        let free = claimable.without(locked).and(unread);
        // A relay takes free lanes up to a limit, and events of each in order up to a limit.
        for events in Events::all_sets() {
            let has_older_of = |event| older_than(event).and(free).without(events).is_empty();
            if events.without(free).is_empty() && events.iter().all(has_older_of) {
                actions.push(Action::Claim(number, events));
            }
        }
    }

    fn sends(&self, relay: &Relay, number: usize, event: Event, actions: &mut Vec<Action>) {
        let in_wave = |other: &Event| relay.wave[*other].is_some();
        // A wave holds one event of each aggregate, the oldest one, in the order of `seq`.
        let is_first = older_than(event).and(relay.unsent).is_empty();
        let is_alone = !aggregate_of(event).iter().any(|other| in_wave(&other));
        let is_next = !self.by_seq.iter().rev().take_while(|other| **other != event).any(in_wave);
        if !(is_first && is_alone && is_next) {
            return;
        }
        let sent: &[Sent] = if relay.wave_has(Route::Lost) {
            &[Sent::Lost, Sent::Late]
        } else {
            &[Sent::Stored, Sent::Returned, Sent::Refused, Sent::StoredAndRefused, Sent::Lost, Sent::Late]
        };
        actions.extend(sent.iter().map(|sent| Action::Send(number, event, *sent)));
        if self.is(Mutant::MarkBeforeConfirm) {
            actions.push(Action::Send(number, event, Sent::Skipped));
        }
    }

    /// The events of a relay's wave in the order of sending, and their routes.
    pub(crate) fn wave(&self, relay: &Relay) -> (Vec<Event>, Vec<Route>) {
        self.by_seq.iter().filter_map(|event| Some((*event, relay.wave[*event]?))).unzip()
    }

    pub(crate) fn publish(&self, state: &mut State<RELAYS, CHANNELS>, action: Action) {
        match action {
            Action::Commit(event) => {
                state.committed.insert(event);
                state.relays.iter_mut().for_each(|relay| relay.sleeps = false);
            }
            Action::CommitUnheard(event) => state.committed.insert(event),
            Action::EndBackoff(event) => state.backs_off.remove(event),
            Action::Claim(relay, events) => self.claim(&mut state.relays[relay], events),
            Action::Send(relay, event, sent) => self.send(state, relay, event, sent),
            Action::Conclude(relay, outcomes) => conclude(&mut state.relays[relay], outcomes),
            Action::Mark(relay) => {
                let relay = &mut state.relays[relay];
                (relay.phase, relay.unsent) = (Phase::Marked, Events::NONE);
            }
            Action::CommitMarks(relay) => commit_marks(state, relay),
            Action::LoseSession(relay) => {
                let relay = &mut state.relays[relay];
                let has_nothing_to_send = relay.is_between_waves() && relay.unsent.is_empty();
                (relay.locked, relay.confirmed, relay.refused) = (Events::NONE, Events::NONE, Events::NONE);
                // Its next statement fails.
                if has_nothing_to_send || relay.phase == Phase::Marked {
                    relay.end_step();
                }
            }
            Action::EndStep(relay) => state.relays[relay].end_step(),
            Action::CrashRelay(relay) => state.relays[relay] = Relay::default(),
            Action::Sleep(relay) => state.relays[relay].sleeps = true,
            Action::ArriveLate(event) => {
                state.late.remove(event);
                state.enqueue(event);
            }
            Action::Duplicate(event) => state.enqueue(event),
            _ => {}
        }
    }

    fn claim(&self, relay: &mut Relay, events: Events) {
        (relay.phase, relay.locked, relay.unsent) = (Phase::Publishing, events, events);
        if self.is(Mutant::CursorOverSeq) {
            let last = self.by_seq.iter().rposition(|event| events.contains(*event));
            relay.cursor = last.and_then(|last| u8::try_from(last + 1).ok()).unwrap_or_default();
        }
    }

    fn send(&self, state: &mut State<RELAYS, CHANNELS>, number: usize, event: Event, sent: Sent) {
        let relay = &mut state.relays[number];
        relay.unsent.remove(event);
        relay.wave[event] = Some(match sent {
            Sent::Stored | Sent::Skipped => Route::Stored,
            Sent::Returned => Route::Returned,
            Sent::Refused | Sent::StoredAndRefused => Route::Refused,
            Sent::Lost | Sent::Late => Route::Lost,
        });
        let has_new_id = relay.tried.contains(event);
        if self.is(Mutant::NewIdPerAttempt) {
            relay.tried.insert(event);
        }
        match sent {
            Sent::Stored | Sent::StoredAndRefused => {
                if has_new_id {
                    state.violate(Invariant::PublishedUncommitted);
                }
                state.enqueue(event);
            }
            Sent::Late => state.late.insert(event),
            Sent::Returned | Sent::Refused | Sent::Lost | Sent::Skipped => {}
        }
    }
}

/// A relay learns what became of its wave. Events of aggregates that are held back stay in the outbox.
fn conclude(relay: &mut Relay, outcomes: [Option<Outcome>; EVENTS]) {
    relay.wave = [None; EVENTS];
    for (event, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Some(Outcome::Confirmed) => relay.confirmed.insert(event),
            Some(Outcome::Refused) => relay.refused.insert(event),
            Some(Outcome::Unknown) | None => {}
        }
        if matches!(outcome, Some(Outcome::Refused | Outcome::Unknown)) {
            relay.unsent = relay.unsent.without(aggregate_of(event));
        }
    }
    if relay.locked.is_empty() {
        // A zombie can write no marks.
        (relay.confirmed, relay.refused) = (Events::NONE, Events::NONE);
        if relay.unsent.is_empty() {
            relay.end_step();
        }
    }
}

fn commit_marks<const R: usize, const C: usize>(state: &mut State<R, C>, number: usize) {
    let relay = state.relays[number];
    if !relay.confirmed.without(state.enqueued).is_empty() {
        state.violate(Invariant::MarkedWithoutMessage);
    }
    state.published = state.published.or(relay.confirmed);
    state.backs_off = state.backs_off.or(relay.refused.without(state.published));
    state.relays[number].end_step();
}
