//! The model: which transitions are possible in a state, and what they change.

use stateright::{Model, Property};

use crate::{
    action::{Action, Sent},
    answers::{Conclusion, Outcome, Route, conclusions},
    events::{EVENTS, Event},
    invariant::Invariant,
    mutant::Mutant,
    state::{Relay, State},
};

/// Relays, a broker with one queue, and consumers with one inbox.
#[derive(Debug, Clone)]
pub struct System<const RELAYS: usize, const CHANNELS: usize> {
    pub(crate) mutant: Option<Mutant>,
    /// The most faults that are injected. `None`: any number.
    faults: Option<u8>,
    /// All events in the order of `seq`. It is fixed before the first commit: a transaction draws its `seq` when it
    /// inserts the row, and may commit after one with a higher `seq`.
    pub(crate) by_seq: [Event; EVENTS],
    /// How many unacknowledged messages the broker delivers to a consumer.
    pub(crate) prefetch: usize,
    /// Whether each state is replaced by an equivalent one that stands for several.
    is_reduced: bool,
    /// The conclusions for each wave, single messages first: see [`Self::conclusions`].
    conclusions: Vec<Vec<Conclusion>>,
}

/// The name of the property that stateright checks.
pub const SAFETY: &str = "no invariant is violated";

/// The order of `seq` that is explored: B1 between A1 and A2, so that it can be committed before and after both.
const BY_SEQ: [Event; EVENTS] = [0, 2, 1];

/// The prefetch that is explored: the smallest with which a consumer holds a message behind an unacknowledged one.
const PREFETCH: usize = 2;

const ROUTES: [Route; 4] = [Route::Stored, Route::Returned, Route::Refused, Route::Lost];

impl<const RELAYS: usize, const CHANNELS: usize> System<RELAYS, CHANNELS> {
    /// A system with at most so many faults. All channels are open.
    pub fn bounded(faults: u8) -> Self {
        Self { is_reduced: true, ..Self::new(Some(faults), None, BY_SEQ) }
    }

    /// The same without the replacement of states by equivalent ones: no trace exchanges the names of two processes.
    #[must_use]
    pub fn unreduced(self) -> Self {
        Self { is_reduced: false, ..self }
    }

    /// The same with one protection removed. It reports only the invariant that the protection guards.
    pub fn mutated(faults: u8, mutant: Mutant) -> Self {
        Self::new(Some(faults), Some(mutant), BY_SEQ)
    }

    /// A system for recorded histories: any number of faults, a prefetch that holds everything, and closed channels.
    pub fn unbounded(by_seq: [Event; EVENTS]) -> Self {
        Self { prefetch: usize::MAX, ..Self::new(None, None, by_seq) }
    }

    fn new(faults: Option<u8>, mutant: Option<Mutant>, by_seq: [Event; EVENTS]) -> Self {
        let pairs = ROUTES.iter().flat_map(|second| ROUTES.map(|first| vec![first, *second]));
        let waves = ROUTES.iter().map(|first| vec![*first]).chain(pairs);
        let conclusions = waves.map(|routes| conclusions(&routes, mutant)).collect();
        Self { mutant, faults, by_seq, prefetch: PREFETCH, is_reduced: false, conclusions }
    }

    pub(crate) fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Whether this system is for recorded histories. Then a process may also crash where nothing is lost by it.
    pub(crate) fn is_unbounded(&self) -> bool {
        self.faults.is_none()
    }

    /// The conclusions that a wave with these routes can lead to. It has one or two messages: one for each aggregate.
    pub(crate) fn conclusions(&self, routes: &[Route]) -> &[Conclusion] {
        let index = routes.iter().rev().fold(0, |index, route| index * ROUTES.len() + *route as usize);
        &self.conclusions[index + if routes.len() > 1 { ROUTES.len() } else { 0 }]
    }

    /// Whether a transition is a fault. The consequences of a fault are none.
    pub(crate) fn is_fault(&self, state: &State<RELAYS, CHANNELS>, action: &Action) -> bool {
        match *action {
            Action::CommitUnheard(_)
            | Action::LoseSession(_)
            | Action::CrashRelay(_)
            | Action::CrashConsumer(_)
            | Action::Duplicate(_)
            | Action::ApplyUnknown(_)
            | Action::SetAside(_)
            | Action::Send(_, _, Sent::Refused | Sent::StoredAndRefused) => true,
            Action::Close(channel) => !state.consumers[channel].is_gone,
            // While the bindings are missing, each message of the wave is returned.
            Action::Send(relay, _, Sent::Returned) => !state.relays[relay].wave_has(Route::Returned),
            // A broken connection loses the rest of the wave, and answers.
            Action::Send(relay, _, Sent::Lost | Sent::Late) => !state.relays[relay].wave_has(Route::Lost),
            Action::Conclude(relay, outcomes) => {
                !state.relays[relay].wave_has(Route::Lost)
                    && self.needs_silence(&state.relays[relay], outcomes)
            }
            _ => false,
        }
    }

    /// Whether the relay concludes this only if an answer is missing.
    fn needs_silence(&self, relay: &Relay, outcomes: [Option<Outcome>; EVENTS]) -> bool {
        let (events, routes) = self.wave(relay);
        let outcomes = events.iter().map(|event| outcomes[*event]);
        let conclusion = self
            .conclusions(&routes)
            .iter()
            .find(|conclusion| conclusion.outcomes.iter().copied().map(Some).eq(outcomes.clone()));
        conclusion.is_none_or(|conclusion| conclusion.is_incomplete)
    }
}

impl<const RELAYS: usize, const CHANNELS: usize> Model for System<RELAYS, CHANNELS> {
    type State = State<RELAYS, CHANNELS>;
    type Action = Action;

    fn init_states(&self) -> Vec<Self::State> {
        vec![State::new(self.faults)]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Action>) {
        // A violation is the end of a trace.
        if state.violated.is_some() {
            return;
        }
        self.writer_actions(state, actions);
        for relay in 0..RELAYS {
            self.relay_actions(state, relay, actions);
        }
        self.broker_actions(state, actions);
        for channel in 0..CHANNELS {
            self.consumer_actions(state, channel, actions);
        }
        if !self.is_unbounded() && state.faults_left == 0 {
            actions.retain(|action| !self.is_fault(state, action));
        }
    }

    fn next_state(&self, state: &Self::State, action: Action) -> Option<Self::State> {
        let mut next = *state;
        if !self.is_unbounded() && self.is_fault(state, &action) {
            next.faults_left -= 1;
        }
        self.publish(&mut next, action);
        self.consume(&mut next, action);
        self.deliver(&mut next);
        if self.is_reduced {
            next.reduce();
        }
        if self.mutant.is_some_and(|mutant| next.violated != Some(mutant.guards())) {
            next.violated = None;
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        // One property for all: stateright stops at the first state that violates it. With one for each invariant it
        // would go on, and later traces would replace the shortest.
        vec![Property::always(SAFETY, |_, state: &Self::State| state.violated.is_none())]
    }
}

impl<const RELAYS: usize, const CHANNELS: usize> State<RELAYS, CHANNELS> {
    /// The violated invariant.
    pub fn violated(&self) -> Option<Invariant> {
        self.violated
    }
}
