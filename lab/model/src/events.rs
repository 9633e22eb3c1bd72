//! The events of the model, and compact sets and lists of them.

use std::fmt;

/// The number of events: two of one aggregate, and one of another.
pub const EVENTS: usize = 3;

/// An event, by its number: 0 and 1 are A1 and A2, 2 is B1.
pub type Event = usize;

/// All events of the aggregate of this event.
pub(crate) fn aggregate_of(event: Event) -> Events {
    if event < 2 { Events(0b011) } else { Events(0b100) }
}

/// The older events of the same aggregate.
pub(crate) fn older_than(event: Event) -> Events {
    Events(aggregate_of(event).0 & ((1 << event) - 1))
}

/// A set of events.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Events(u8);

impl Events {
    pub const NONE: Self = Self(0);
    pub const ALL: Self = Self((1 << EVENTS) - 1);

    /// All sets of events but the empty one.
    pub(crate) fn all_sets() -> impl Iterator<Item = Self> {
        (1..=Self::ALL.0).map(Self)
    }

    pub fn contains(self, event: Event) -> bool {
        self.0 >> event & 1 == 1
    }

    pub fn insert(&mut self, event: Event) {
        self.0 |= 1 << event;
    }

    pub(crate) fn remove(&mut self, event: Event) {
        self.0 &= !(1 << event);
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Event> {
        (0..EVENTS).filter(move |event| self.contains(*event))
    }
}

impl FromIterator<Event> for Events {
    fn from_iter<T: IntoIterator<Item = Event>>(events: T) -> Self {
        events.into_iter().fold(Self::NONE, |mut set, event| {
            set.insert(event);
            set
        })
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(name).collect();
        write!(f, "[{}]", names.join(" "))
    }
}

/// The name of an event in traces.
pub(crate) fn name(event: Event) -> &'static str {
    ["A1", "A2", "B1"][event]
}

/// Copies of events in order, for example the messages in a queue.
///
/// Two bits for each, the oldest in the lowest, and a 1 above the newest. It holds up to fifteen. A list that does not
/// fit panics (both profiles check for overflow), so that it cannot make an exploration incomplete.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Copies(u32);

impl Default for Copies {
    fn default() -> Self {
        Self(1)
    }
}

impl Copies {
    pub(crate) fn len(self) -> usize {
        self.0.ilog2() as usize / 2
    }

    pub(crate) fn is_empty(self) -> bool {
        self.len() == 0
    }

    pub(crate) fn get(self, index: usize) -> Event {
        (self.0 >> (2 * index) & 3) as usize
    }

    pub(crate) fn push_back(&mut self, event: Event) {
        let end = 1 << (2 * self.len());
        self.0 += end * (3 + u32::try_from(event).unwrap_or_default());
    }

    pub(crate) fn pop_front(&mut self) -> Event {
        let first = self.get(0);
        self.0 >>= 2;
        first
    }

    /// Puts another list behind this one.
    pub(crate) fn append(&mut self, other: Self) {
        for index in 0..other.len() {
            self.push_back(other.get(index));
        }
    }
}

impl fmt::Debug for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries((0..self.len()).map(|index| name(self.get(index)))).finish()
    }
}
