//! What a batch of confirms means, once all of them are there.

use std::collections::HashSet;

use events::transport::{Outcome, Outgoing, Refusal};
use faults::Sabotage;
use uuid::Uuid;

/// What was heard about one message of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It was never sent: it is larger than what we send.
    TooLarge,
    /// The broker has taken a message. `returned` is what came along with that answer: the id of a message that no
    /// queue is bound for, and not necessarily of this one.
    Ack {
        /// The `message_id` of the message that came back.
        returned: Option<Uuid>,
    },
    /// The broker has refused a message.
    Nack {
        /// As above.
        returned: Option<Uuid>,
    },
    /// Nothing, before the connection or the patience ended.
    Silence,
}

/// Decides what became of each message of a batch.
///
/// AMQP gives a returned message no delivery tag, and lapin hands it to whichever confirm completes next. So a message
/// that came back may well carry a plain ack itself, while its neighbour carries the return. That is why this looks at
/// all answers of a batch before it decides about any, and why returns are matched by message id.
pub fn decide(batch: &[Outgoing], answers: &[Answer]) -> Vec<Outcome> {
    let came_back = |answer: &Answer| match answer {
        Answer::Ack { returned } | Answer::Nack { returned } => *returned,
        Answer::TooLarge | Answer::Silence => None,
    };
    let returned: HashSet<_> = answers.iter().filter_map(came_back).collect();
    let heard = answers.iter().copied().chain(std::iter::repeat(Answer::Silence));
    batch
        .iter()
        .zip(heard)
        .map(|(message, answer)| match answer {
            Answer::TooLarge => Outcome::Refused(Refusal::TooLarge),
            Answer::Silence => Outcome::Unknown,
            _ if faults::sabotaged(Sabotage::ReturnTrustedToItsConfirm) => match came_back(&answer) {
                Some(_) => Outcome::Refused(Refusal::Unroutable),
                None => Outcome::Confirmed,
            },
            _ if returned.contains(&message.id) => Outcome::Refused(Refusal::Unroutable),
            Answer::Ack { .. } => Outcome::Confirmed,
            Answer::Nack { .. } => Outcome::Refused(Refusal::Nacked),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Outgoing {
        Outgoing { id: Uuid::new_v4(), event_type: String::new(), body: vec![], traceparent: None }
    }

    #[test]
    fn a_return_counts_for_the_message_that_came_back_whichever_confirm_carried_it() {
        let batch = [message(), message(), message()];
        let plain = Answer::Ack { returned: None };
        let on_the_neighbour = [plain, Answer::Ack { returned: Some(batch[0].id) }, plain];
        let unroutable = Outcome::Refused(Refusal::Unroutable);
        assert_eq!(decide(&batch, &on_the_neighbour), [unroutable, Outcome::Confirmed, Outcome::Confirmed]);
    }

    #[test]
    fn what_was_never_answered_is_unknown() {
        let batch = [message(), message(), message()];
        let answers = [Answer::Nack { returned: None }, Answer::Silence];
        let expected = [Outcome::Refused(Refusal::Nacked), Outcome::Unknown, Outcome::Unknown];
        assert_eq!(decide(&batch, &answers), expected);
    }
}
