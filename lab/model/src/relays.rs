//! The rules of the writers, the relays, and the broker's side of publishing.

use flaws::Flaw;

use crate::{
    action::{Action, Sent},
    answers::{Outcome, Route},
    events::{EVENTS, Event, Events, aggregate_of, older_than},
    invariant::Invariant,
    state::{Phase, Relay, State},
    system::{Steps, System},
};

impl<const RELAYS: usize, const CHANNELS: usize> Steps<'_, RELAYS, CHANNELS> {
    pub(crate) fn of_writers(&mut self) {
        let committed = self.from.committed;
        // Transactions that change one aggregate wait for each other on its row; others commit in any order.
        for event in Events::ALL.without(committed).iter() {
            if older_than(event).without(committed).is_empty() {
                self.add(Action::Commit(event), |next| {
                    next.committed.insert(event);
                    next.relays.iter_mut().for_each(|relay| relay.sleeps = false);
                });
                if self.system.has(Flaw::WokenOnly) {
                    self.add_fault(Action::CommitUnheard(event), |next| next.committed.insert(event));
                }
            }
        }
        for event in self.from.backs_off.iter() {
            self.add(Action::EndBackoff(event), |next| next.backs_off.remove(event));
        }
    }

    pub(crate) fn of_relay(&mut self, number: usize) {
        let relay = &self.from.relays[number];
        let is_unbounded = self.system.is_unbounded();
        if relay.phase == Phase::Idle && !relay.sleeps {
            self.claims(number);
        }
        for event in relay.unsent.iter() {
            self.sends(number, event);
        }
        let (events, routes) = self.system.wave(relay);
        if !routes.is_empty() {
            for (conclusion, is_incomplete) in self.system.conclusions(&routes) {
                let mut outcomes = [None; EVENTS];
                for (event, outcome) in events.iter().zip(conclusion) {
                    outcomes[*event] = Some(*outcome);
                }
                // A broken connection loses answers too.
                let is_fault = *is_incomplete && !relay.wave_has(Route::Lost);
                self.add_if_allowed(Action::Conclude(number, outcomes), is_fault, |next| {
                    conclude(&mut next.relays[number], outcomes);
                });
            }
        }
        if relay.is_between_waves() {
            if relay.locked.is_empty() {
                self.add(Action::EndStep(number), |next| next.relays[number].end_step());
            } else if relay.unsent != relay.locked || is_unbounded {
                // In a recorded history the relay may have sent a wave of other events.
                self.add(Action::Mark(number), |next| {
                    let relay = &mut next.relays[number];
                    (relay.phase, relay.unsent) = (Phase::Marked, Events::NONE);
                });
            }
        }
        if relay.phase == Phase::Marked {
            self.add(Action::CommitMarks(number, relay.confirmed, relay.refused), |next| {
                commit_marks(next, number);
            });
        }
        if !relay.locked.is_empty() {
            self.add_fault(Action::LoseSession(number), |next| lose_session(&mut next.relays[number]));
        }
        if *relay != Relay::default() || is_unbounded {
            self.add_fault(Action::CrashRelay(number), |next| next.relays[number] = Relay::default());
        }
    }

    /// Pending, not backing off, and with no older event of its aggregate that backs off.
    fn claimable(&self) -> Events {
        let (system, state) = (self.system, self.from);
        let is_visible = |event: Event| {
            let inserted = older_than(event).without(state.committed).is_empty();
            state.committed.contains(event) || (system.has(Flaw::DirtyRead) && inserted)
        };
        let is_held_back = |event| {
            !older_than(event).and(state.backs_off).is_empty() && !system.has(Flaw::OlderEventIgnored)
        };
        let pending = Events::ALL.without(state.published).without(state.backs_off);
        pending.iter().filter(|event| is_visible(*event) && !is_held_back(*event)).collect()
    }

    fn claims(&mut self, number: usize) {
        let (system, state, claimable) = (self.system, self.from, self.claimable());
        if system.has(Flaw::WokenOnly) && claimable.is_empty() {
            self.add(Action::Sleep(number), |next| next.relays[number].sleeps = true);
        }
        let locked = state.relays.iter().flat_map(|relay| relay.locked.iter());
        let locked: Events = if system.has(Flaw::SkipLockedOnRows) {
            locked.collect()
        } else {
            locked.flat_map(|event| aggregate_of(event).iter()).collect()
        };
        let cursor = usize::from(state.relays[number].cursor);
        let unread: Events = system.by_seq.into_iter().skip(cursor).collect();
        let free = claimable.without(locked).and(unread);
        // A relay takes free lanes up to a limit, and events of each in order up to a limit.
        for events in Events::all_sets() {
            let has_older_of = |event| older_than(event).and(free).without(events).is_empty();
            if events.without(free).is_empty() && events.iter().all(has_older_of) {
                self.add(Action::Claim(number, events), |next| {
                    let relay = &mut next.relays[number];
                    (relay.phase, relay.locked, relay.unsent) = (Phase::Publishing, events, events);
                    if system.has(Flaw::CursorOverSeq) {
                        let last = system.by_seq.iter().rposition(|event| events.contains(*event));
                        let next = last.and_then(|last| u8::try_from(last + 1).ok());
                        relay.cursor = next.unwrap_or_default();
                    }
                });
            }
        }
    }

    fn sends(&mut self, number: usize, event: Event) {
        let (system, relay) = (self.system, &self.from.relays[number]);
        let in_wave = |other: &Event| relay.wave[*other].is_some();
        // A wave holds one event of each aggregate, the oldest one, in the order of `seq`.
        let is_first = older_than(event).and(relay.unsent).is_empty();
        let is_alone = !aggregate_of(event).iter().any(|other| in_wave(&other));
        let is_next = !system.by_seq.iter().rev().take_while(|other| **other != event).any(in_wave);
        if !(is_first && is_alone && is_next) {
            return;
        }
        let is_broken = relay.wave_has(Route::Lost);
        let mut send = |sent, route, is_fault| {
            self.add_if_allowed(Action::Send(number, event, sent), is_fault, |next| {
                let relay = &mut next.relays[number];
                relay.unsent.remove(event);
                relay.wave[event] = Some(route);
                let has_new_id = relay.tried.contains(event);
                if system.has(Flaw::NewIdPerAttempt) {
                    relay.tried.insert(event);
                }
                if matches!(sent, Sent::Stored | Sent::StoredAndRefused) {
                    if has_new_id {
                        next.violate(Invariant::PublishedUncommitted);
                    }
                    next.enqueue(event);
                } else if sent == Sent::Late {
                    next.late.insert(event);
                }
            });
        };
        if !is_broken {
            send(Sent::Stored, Route::Stored, false);
            // While the bindings are missing, each message of the wave is returned.
            send(Sent::Returned, Route::Returned, !relay.wave_has(Route::Returned));
            send(Sent::Refused, Route::Refused, true);
            send(Sent::StoredAndRefused, Route::Refused, true);
        }
        // A broken connection loses the rest of the wave.
        send(Sent::Lost, Route::Lost, !is_broken);
        send(Sent::Late, Route::Lost, !is_broken);
        if system.has(Flaw::MarkBeforeConfirm) {
            send(Sent::Skipped, Route::Stored, false);
        }
    }

    pub(crate) fn of_broker(&mut self) {
        for event in self.from.late.iter() {
            self.add(Action::ArriveLate(event), |next| {
                next.late.remove(event);
                next.enqueue(event);
            });
        }
        for event in self.from.enqueued.iter() {
            self.add_fault(Action::Duplicate(event), |next| next.enqueue(event));
        }
    }
}

impl<const RELAYS: usize, const CHANNELS: usize> System<RELAYS, CHANNELS> {
    /// The events of a relay's wave in the order of sending, and their routes.
    fn wave(&self, relay: &Relay) -> (Vec<Event>, Vec<Route>) {
        self.by_seq.iter().filter_map(|event| Some((*event, relay.wave[*event]?))).unzip()
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

fn lose_session(relay: &mut Relay) {
    let has_nothing_to_send = relay.is_between_waves() && relay.unsent.is_empty();
    (relay.locked, relay.confirmed, relay.refused) = (Events::NONE, Events::NONE, Events::NONE);
    // Its next statement fails.
    if has_nothing_to_send || relay.phase == Phase::Marked {
        relay.end_step();
    }
}
