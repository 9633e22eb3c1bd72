//! The model: the steps that are possible in a state.

use flaws::Flaw;

use crate::{
    action::Action,
    answers::{Conclusions, Route, conclusions},
    events::{EVENTS, Event},
    invariant::Invariant,
    state::State,
};

/// A step: what happens, whether it is a fault, and the state after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step<const RELAYS: usize, const CHANNELS: usize> {
    pub(crate) action: Action,
    pub(crate) is_fault: bool,
    pub(crate) next: State<RELAYS, CHANNELS>,
}

/// Relays, a broker with one queue, and consumers with one inbox.
#[derive(Debug, Clone)]
pub struct System<const RELAYS: usize, const CHANNELS: usize> {
    flaw: Option<Flaw>,
    /// With a flaw: the number of the invariant that its protection guards. No other is reported.
    reports: Option<&'static str>,
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
    conclusions: Vec<Conclusions>,
}

/// The system that is explored: two relays, and two consuming instances.
pub type Explored = System<2, 2>;

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

    /// The same with one protection left out. It reports only the invariant that the protection guards.
    pub fn flawed(faults: u8, flaw: Flaw) -> Self {
        Self::new(Some(faults), Some(flaw), BY_SEQ)
    }

    /// A system for recorded histories: any number of faults, a prefetch that holds everything, and closed channels.
    pub fn unbounded(by_seq: [Event; EVENTS]) -> Self {
        Self { prefetch: usize::MAX, ..Self::new(None, None, by_seq) }
    }

    fn new(faults: Option<u8>, flaw: Option<Flaw>, by_seq: [Event; EVENTS]) -> Self {
        let pairs = ROUTES.iter().flat_map(|second| ROUTES.map(|first| vec![first, *second]));
        let waves = ROUTES.iter().map(|first| vec![*first]).chain(pairs);
        let conclusions = waves.map(|routes| conclusions(&routes, flaw)).collect();
        let reports = flaw.and_then(|flaw| flaw.row().simulated?.in_model);
        Self { flaw, reports, faults, by_seq, prefetch: PREFETCH, is_reduced: false, conclusions }
    }

    pub(crate) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Whether this system is for recorded histories. Then a process may also crash where nothing is lost by it.
    pub(crate) fn is_unbounded(&self) -> bool {
        self.faults.is_none()
    }

    /// The conclusions that a wave with these routes can lead to. It has one or two messages: one for each aggregate.
    pub(crate) fn conclusions(&self, routes: &[Route]) -> &Conclusions {
        let index = routes.iter().rev().fold(0, |index, route| index * ROUTES.len() + *route as usize);
        &self.conclusions[index + if routes.len() > 1 { ROUTES.len() } else { 0 }]
    }

    pub(crate) fn first_state(&self) -> State<RELAYS, CHANNELS> {
        State::new(self.faults)
    }

    /// The steps that are possible in a state. With an entry of a history: the silent ones, and those that it records.
    pub(crate) fn steps(
        &self,
        state: &State<RELAYS, CHANNELS>,
        entry: Option<Action>,
        found: &mut Vec<Step<RELAYS, CHANNELS>>,
    ) {
        // A violation is the end of a trace.
        if state.violated.is_some() {
            return;
        }
        let mut steps = Steps { system: self, from: state, entry, found };
        steps.of_writers();
        (0..RELAYS).for_each(|relay| steps.of_relay(relay));
        steps.of_broker();
        (0..CHANNELS).for_each(|channel| steps.of_consumer(channel));
    }
}

/// The steps from one state, as the rules find them.
pub(crate) struct Steps<'a, const RELAYS: usize, const CHANNELS: usize> {
    pub(crate) system: &'a System<RELAYS, CHANNELS>,
    pub(crate) from: &'a State<RELAYS, CHANNELS>,
    entry: Option<Action>,
    found: &'a mut Vec<Step<RELAYS, CHANNELS>>,
}

impl<const RELAYS: usize, const CHANNELS: usize> Steps<'_, RELAYS, CHANNELS> {
    /// A step that is no fault. The consequences of a fault are none.
    pub(crate) fn add(&mut self, action: Action, change: impl FnOnce(&mut State<RELAYS, CHANNELS>)) {
        self.add_if_allowed(action, false, change);
    }

    pub(crate) fn add_fault(&mut self, action: Action, change: impl FnOnce(&mut State<RELAYS, CHANNELS>)) {
        self.add_if_allowed(action, true, change);
    }

    pub(crate) fn add_if_allowed(
        &mut self,
        action: Action,
        is_fault: bool,
        change: impl FnOnce(&mut State<RELAYS, CHANNELS>),
    ) {
        let is_recorded = |entry| action.recorded().is_none_or(|recorded| recorded == entry);
        if !self.entry.is_none_or(is_recorded) {
            return;
        }
        let mut next = *self.from;
        if is_fault && !self.system.is_unbounded() {
            let Some(left) = next.faults_left.checked_sub(1) else { return };
            next.faults_left = left;
        }
        change(&mut next);
        self.system.deliver(&mut next);
        if self.system.is_reduced {
            next.reduce();
        }
        if self.system.reports.is_some_and(|number| next.violated.map(Invariant::number) != Some(number)) {
            next.violated = None;
        }
        self.found.push(Step { action, is_fault, next });
    }
}
