//! What a relay may learn about the messages of one wave, within what AMQP and its client allow.

use std::collections::VecDeque;

use flaws::Flaw;
use indexmap::IndexMap;

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

/// What the client reports about one message. A return names its message by the place in the wave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Ack { returned: Option<usize> },
    Nack { returned: Option<usize> },
    Silence,
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
    answers: Vec<Option<Answer>>,
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
        let answers: Vec<_> = self.answers.iter().map(|answer| answer.unwrap_or(Answer::Silence)).collect();
        let is_incomplete = answers.contains(&Answer::Silence);
        *found.entry(decide(&answers, flaw)).or_insert(true) &= is_incomplete;
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
            let returned = next.unclaimed.pop_front();
            let answer =
                if *route == Route::Refused { Answer::Nack { returned } } else { Answer::Ack { returned } };
            // The client awaits confirms in the order of sending. If the deadline passes while it awaits one that
            // completes a moment later, it misses that one, and sees those that were sent after it.
            if next.missed.is_none() {
                let mut missed = next.clone();
                missed.missed = Some(message);
                missed.answers[message] = Some(Answer::Silence);
                missed.explore(routes, flaw, found);
            }
            let is_missed = next.missed.is_some_and(|missed| message < missed);
            next.answers[message] = Some(if is_missed { Answer::Silence } else { answer });
            next.explore(routes, flaw, found);
        }
    }
}

/// Decides what became of each message of a wave: `messaging::confirms::decide`, or what a flaw has in its place.
pub fn decide(answers: &[Answer], flaw: Option<Flaw>) -> Vec<Outcome> {
    if flaw == Some(Flaw::ConfirmsIgnored) {
        return vec![Outcome::Confirmed; answers.len()];
    }
    let carried = |answer: &Answer| match answer {
        Answer::Ack { returned } | Answer::Nack { returned } => *returned,
        Answer::Silence => None,
    };
    let returned: Vec<_> = answers.iter().filter_map(carried).collect();
    let silence = answers.iter().position(|answer| *answer == Answer::Silence);
    let counts = |message: usize| match flaw {
        Some(Flaw::ReturnTrustedToItsConfirm | Flaw::SilenceIgnored) => true,
        _ => silence.is_none_or(|silence| returned.is_empty() && message < silence),
    };
    let came_back = |message: usize, answer: &Answer| match flaw {
        Some(Flaw::ReturnTrustedToItsConfirm) => carried(answer).is_some(),
        _ => returned.contains(&message),
    };
    let outcome = |(message, answer): (usize, &Answer)| match answer {
        Answer::Silence => Outcome::Unknown,
        _ if came_back(message, answer) => Outcome::Refused,
        Answer::Ack { .. } if counts(message) => Outcome::Confirmed,
        Answer::Ack { .. } => Outcome::Unknown,
        Answer::Nack { .. } => Outcome::Refused,
    };
    answers.iter().enumerate().map(outcome).collect()
}
