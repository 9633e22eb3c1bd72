//! What a publisher hears about a batch, in the ways that AMQP and its client allow.

use std::collections::VecDeque;

use broker::answers::Answer;
use uuid::Uuid;

use crate::{fault::Fault, world::State};

/// What the broker did with one message of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is in all queues.
    Taken,
    /// No queue is bound for it: it comes back, and is acknowledged.
    Returned(Uuid),
    /// Negatively acknowledged.
    Refused,
    /// It was never sent: it is too large.
    TooLarge,
    /// Nothing will be heard: the connection broke before the broker saw it, or before it answered.
    Lost,
}

/// How the answers of a batch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All came in time.
    Whole,
    /// From some moment on none came: the connection broke.
    Cut,
    /// The deadline passed while they were coming.
    Deadline,
}

/// Plays the broker's answers over the wire.
///
/// A return comes before its own message's acknowledgement, and carries no delivery tag. The client keeps returns in a
/// queue, and gives the oldest to whichever confirm completes next.
pub(crate) fn answers(state: &mut State, fates: &[Fate], ending: Ending) -> Vec<Answer> {
    let mut answers: Vec<_> = fates
        .iter()
        .map(|fate| if *fate == Fate::TooLarge { Answer::TooLarge } else { Answer::Silence })
        .collect();
    let mut order: Vec<_> =
        (0..fates.len()).filter(|index| !matches!(fates[*index], Fate::TooLarge | Fate::Lost)).collect();
    if order.len() > 1 && state.strikes(Fault::ConfirmReordered) {
        state.dice.shuffle(&mut order);
    }
    let heard = match ending {
        Ending::Whole => order.len(),
        Ending::Cut | Ending::Deadline => state.dice.between(0, order.len()),
    };

    // When each return arrives: at the latest right before its own confirm.
    let mut arrivals = vec![];
    for (position, index) in order.iter().enumerate() {
        if let Fate::Returned(id) = fates[*index] {
            let early = position > 0 && state.strikes(Fault::ReturnOnAnother);
            let arrival = if early { state.dice.between(0, position) } else { position };
            arrivals.push((arrival, id));
        }
    }
    arrivals.sort_by_key(|(arrival, _)| *arrival);
    let mut arrivals = VecDeque::from(arrivals);
    let mut waiting = VecDeque::new();
    for (position, index) in order.iter().enumerate().take(heard) {
        while let Some((_, id)) = arrivals.pop_front_if(|(arrival, _)| *arrival <= position) {
            waiting.push_back(id);
        }
        let returned = waiting.pop_front();
        answers[*index] = match fates[*index] {
            Fate::Refused => Answer::Nack { returned },
            _ => Answer::Ack { returned },
        };
    }
    if ending == Ending::Deadline && heard > 0 && state.strikes(Fault::ReturnUnheard) {
        give_up_one(state, &order[..heard], &mut answers);
    }
    answers
}

/// The confirms are looked at in the order of sending. The deadline passes while the client waits for this one, and a
/// moment later this one and others complete: it is not looked at any more, and those sent after it are.
fn give_up_one(state: &mut State, order: &[usize], answers: &mut [Answer]) {
    let position = state.dice.between(0, order.len() - 1);
    let given_up = order[position];
    answers[given_up] = Answer::Silence;
    // Whatever completed even later and was sent before it had been given up already.
    for later in &order[position..] {
        if *later < given_up {
            answers[*later] = Answer::Silence;
        }
    }
}
