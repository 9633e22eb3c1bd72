//! What a publisher receives for a batch, within what AMQP and its client allow.

use std::collections::VecDeque;

use messaging::confirms::Confirm;
use uuid::Uuid;

use crate::{fault::Fault, sometimes::Sometimes, state::State};

/// What became of one message of a batch on its way to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Routing {
    /// The broker put it into all queues.
    Enqueued,
    /// No queue is bound for it: the broker returns and acknowledges it.
    Returned(Uuid),
    /// The broker sends a negative acknowledgement.
    Nacked,
    /// The publisher does not send it: it is too large.
    TooLarge,
    /// No answer will arrive: the connection broke before the broker received it, or before the broker answered.
    Lost,
}

/// How the answers to a batch end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswersEnd {
    /// All arrive in time.
    Complete,
    /// The connection breaks, and later ones do not arrive.
    Disconnected,
    /// The deadline passes while they arrive.
    Deadline,
}

/// Draws the answers that the publisher's client reports for a batch.
///
/// The broker sends a return before its own message's acknowledgement, and without a delivery tag. The client keeps
/// returns in a queue and gives the oldest to whichever confirm completes next.
pub(crate) fn draw_confirms(state: &mut State, routings: &[Routing], end: AnswersEnd) -> Vec<Confirm> {
    let mut confirms: Vec<_> = routings
        .iter()
        .map(|routing| if *routing == Routing::TooLarge { Confirm::TooLarge } else { Confirm::Silence })
        .collect();
    let mut order: Vec<_> = (0..routings.len())
        .filter(|index| !matches!(routings[*index], Routing::TooLarge | Routing::Lost))
        .collect();
    if order.len() > 1 && state.injects(Fault::ConfirmReordered) {
        state.random.shuffle(&mut order);
    }
    let arrived = match end {
        AnswersEnd::Complete => order.len(),
        AnswersEnd::Disconnected | AnswersEnd::Deadline => state.random.between(0, order.len()),
    };

    // The position at which each return arrives: at the latest right before its own confirm.
    let mut returns = vec![];
    for (position, index) in order.iter().enumerate() {
        if let Routing::Returned(id) = routings[*index] {
            let early = position > 0 && state.injects(Fault::ReturnOnAnother);
            let arrival = if early { state.random.between(0, position) } else { position };
            returns.push((arrival, id));
        }
    }
    returns.sort_by_key(|(arrival, _)| *arrival);
    let mut returns = VecDeque::from(returns);
    let mut waiting = VecDeque::new();
    for (position, index) in order.iter().enumerate().take(arrived) {
        while let Some((_, id)) = returns.pop_front_if(|(arrival, _)| *arrival <= position) {
            waiting.push_back(id);
        }
        let returned = waiting.pop_front();
        if returned.is_some_and(|id| routings[*index] != Routing::Returned(id)) {
            state.reach(Sometimes::ReturnOnNeighboursConfirm);
        }
        confirms[*index] = match routings[*index] {
            Routing::Nacked => Confirm::Nack { returned },
            _ => Confirm::Ack { returned },
        };
    }
    if end == AnswersEnd::Deadline && arrived > 0 && state.injects(Fault::ReturnMissed) {
        miss_one_confirm(state, &order[..arrived], &mut confirms);
    }
    confirms
}

/// Replaces one confirm by silence. The client awaits confirms in the order of sending. The deadline passes while it
/// awaits this one, and a moment later this one and others complete: it is missed, and those sent after it are seen.
fn miss_one_confirm(state: &mut State, order: &[usize], confirms: &mut [Confirm]) {
    let position = state.random.between(0, order.len() - 1);
    let missed = order[position];
    confirms[missed] = Confirm::Silence;
    // A confirm that completes even later, of a message that was sent earlier, was missed before.
    for later in &order[position..] {
        if *later < missed {
            confirms[*later] = Confirm::Silence;
        }
    }
}
