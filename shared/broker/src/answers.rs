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
///
/// Where an answer is missing, so may be a return that it carried, and an ack proves nothing that could be that
/// return's message:
///
/// - returns wait in a queue. If the ack of one returned message carries the return of another, its own rides on an ack
///   that is still to come. So with any return in the batch and any silence, no ack counts;
/// - answers are awaited in the order of sending. The silent one may have completed a moment after its deadline, with
///   a return of a message that was sent later and whose plain ack was still looked at. So behind a silence no ack
///   counts, return or not.
///
/// What does not count is unknown: it is published again, and consumers drop the copy.
pub fn decide(batch: &[Outgoing], answers: &[Answer]) -> Vec<Outcome> {
    let came_back = |answer: &Answer| match answer {
        Answer::Ack { returned } | Answer::Nack { returned } => *returned,
        Answer::TooLarge | Answer::Silence => None,
    };
    let returned: HashSet<_> = answers.iter().filter_map(came_back).collect();
    let silence = answers.iter().position(|answer| *answer == Answer::Silence);
    let silence = silence.or((answers.len() < batch.len()).then_some(answers.len()));
    let counts = |index: usize| silence.is_none_or(|silence| returned.is_empty() && index < silence);
    let heard = answers.iter().copied().chain(std::iter::repeat(Answer::Silence));
    batch
        .iter()
        .zip(heard)
        .enumerate()
        .map(|(index, (message, answer))| match answer {
            Answer::TooLarge => Outcome::Refused(Refusal::TooLarge),
            Answer::Silence => Outcome::Unknown,
            _ if faults::sabotaged(Sabotage::ReturnTrustedToItsConfirm) => match came_back(&answer) {
                Some(_) => Outcome::Refused(Refusal::Unroutable),
                None => Outcome::Confirmed,
            },
            _ if returned.contains(&message.id) => Outcome::Refused(Refusal::Unroutable),
            Answer::Ack { .. } if counts(index) => Outcome::Confirmed,
            Answer::Ack { .. } => Outcome::Unknown,
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
    fn where_an_answer_and_a_return_are_missing_no_ack_counts() {
        let batch = [message(), message(), message()];
        let plain = Answer::Ack { returned: None };
        let first_came_back = Answer::Ack { returned: Some(batch[0].id) };
        let unroutable = Outcome::Refused(Refusal::Unroutable);
        // The second message's return may be on its way, on the third's confirm.
        let outcomes = decide(&batch, &[plain, first_came_back, Answer::Silence]);
        assert_eq!(outcomes, [unroutable, Outcome::Unknown, Outcome::Unknown]);
        // The same when the batch was not sent to its end.
        let outcomes = decide(&batch, &[plain, first_came_back]);
        assert_eq!(outcomes, [unroutable, Outcome::Unknown, Outcome::Unknown]);
    }

    #[test]
    fn behind_a_silence_no_ack_counts() {
        let batch = [message(), message(), message()];
        let plain = Answer::Ack { returned: None };
        let outcomes = decide(&batch, &[plain, Answer::Silence, plain]);
        assert_eq!(outcomes, [Outcome::Confirmed, Outcome::Unknown, Outcome::Unknown]);
    }

    #[test]
    fn what_was_never_answered_is_unknown() {
        let batch = [message(), message(), message()];
        let answers = [Answer::Nack { returned: None }, Answer::Silence];
        let expected = [Outcome::Refused(Refusal::Nacked), Outcome::Unknown, Outcome::Unknown];
        assert_eq!(decide(&batch, &answers), expected);
    }
}
