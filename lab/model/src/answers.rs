//! What a relay may learn about the messages of one wave, within what AMQP and its client allow.

use std::collections::VecDeque;

use flaws::{Flaw, confirms::decide};
use indexmap::IndexMap;
use messaging::{Outgoing, PublishOutcome, confirms::Confirm};
use uuid::Uuid;

/// What became of a message on its way to the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Route {
    /// The queue has it.
    Stored,
    /// No queue is bound for it: the broker returns it, and acknowledges it.
    Returned,
    /// The broker sends a negative acknowledgement.
    Refused,
    /// The connection broke: no answer will come.
    Lost,
}

/// What the relay concludes about one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    Confirmed,
    Refused,
    Unknown,
}

/// The conclusions that a wave can lead to: the outcomes in the order of sending, and whether they need that an answer is
/// missing.
pub(crate) type Conclusions = IndexMap<Vec<Outcome>, bool>;

/// All conclusions that a wave with these routes can lead to. What complete answers lead to needs no fault, and comes first.
pub(crate) fn conclusions(routes: &[Route], flaw: Option<Flaw>) -> Conclusions {
    let mut found = Conclusions::new();
    let arrivals = Arrivals {
        answers: vec![None; routes.len()],
        returned: vec![false; routes.len()],
        unclaimed: VecDeque::new(),
        missed: None,
    };
    arrivals.explore(routes, flaw, &mut found);
    found.sort_by(|_, is_incomplete, _, other| is_incomplete.cmp(other));
    found
}

/// The returns and confirms of a wave that have arrived.
#[derive(Clone)]
struct Arrivals {
    answers: Vec<Option<Confirm>>,
    /// Whose return has arrived.
    returned: Vec<bool>,
    /// Returns that no confirm carries yet. AMQP gives a return no delivery tag: the client gives the oldest one to
    /// whichever confirm completes next.
    unclaimed: VecDeque<usize>,
    /// The message whose confirm completed just after its deadline.
    missed: Option<usize>,
}

impl Arrivals {
    /// Stops here, with silence for the rest, or continues with each possible arrival.
    fn explore(self, routes: &[Route], flaw: Option<Flaw>, found: &mut Conclusions) {
        let answers: Vec<_> = self.answers.iter().map(|answer| answer.unwrap_or(Confirm::Silence)).collect();
        let is_incomplete = answers.contains(&Confirm::Silence);
        *found.entry(conclude(&answers, flaw)).or_insert(true) &= is_incomplete;
        for (message, route) in routes.iter().enumerate() {
            if *route == Route::Lost || self.answers[message].is_some() {
                continue;
            }
            // The broker sends a return before the acknowledgement of the same message, at any distance.
            if *route == Route::Returned && !self.returned[message] {
                let mut next = self.clone();
                next.returned[message] = true;
                next.unclaimed.push_back(message);
                next.explore(routes, flaw, found);
                continue;
            }
            let mut next = self.clone();
            let returned = next.unclaimed.pop_front().map(id);
            let answer =
                if *route == Route::Refused { Confirm::Nack { returned } } else { Confirm::Ack { returned } };
            // The client awaits confirms in the order of sending. If the deadline passes while it awaits one that
            // completes a moment later, it misses that one, and sees those that were sent after it.
            if next.missed.is_none() {
                let mut missed = next.clone();
                missed.missed = Some(message);
                missed.answers[message] = Some(Confirm::Silence);
                missed.explore(routes, flaw, found);
            }
            let is_missed = next.missed.is_some_and(|missed| message < missed);
            next.answers[message] = Some(if is_missed { Confirm::Silence } else { answer });
            next.explore(routes, flaw, found);
        }
    }
}

/// A message by its place in the wave.
fn id(place: usize) -> Uuid {
    Uuid::from_u128(place as u128)
}

/// What the relay concludes from the answers to a wave: the product decides, or what a flaw has in its place.
fn conclude(answers: &[Confirm], flaw: Option<Flaw>) -> Vec<Outcome> {
    let message = |place| Outgoing {
        id: id(place),
        event_type: String::new(),
        lane: 0,
        body: vec![],
        traceparent: None,
    };
    let messages: Vec<_> = (0..answers.len()).map(message).collect();
    let outcomes = decide(flaw, &messages.iter().collect::<Vec<_>>(), answers).into_iter();
    let outcomes = outcomes.map(|outcome| match outcome {
        PublishOutcome::Confirmed => Outcome::Confirmed,
        PublishOutcome::Refused(_) => Outcome::Refused,
        PublishOutcome::Unknown => Outcome::Unknown,
    });
    outcomes.collect()
}
