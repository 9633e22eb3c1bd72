//! What became of each message of a batch, decided once all confirms are there.

use std::collections::HashSet;

use uuid::Uuid;

use crate::{Outgoing, PublishOutcome, Refusal};

/// What the broker answered about one message of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirm {
    /// The message was not sent: it is larger than the limit.
    TooLarge,
    /// Acknowledged. `returned` is the `message_id` of a message that no queue is bound for and that lapin handed over
    /// with this confirm; not necessarily of this message.
    Ack { returned: Option<Uuid> },
    /// Negatively acknowledged.
    Nack { returned: Option<Uuid> },
    /// No answer before the connection or the deadline ended.
    Silence,
}

/// Decides what became of each message of a batch.
///
/// RabbitMQ sends `basic.return` without a delivery tag, so lapin attaches a returned message to whichever confirm completes
/// next, possibly that of another message. Two things follow:
///
/// - A return is matched by its message id, and only when all answers of the batch are known.
/// - If an answer is missing, a return may be missing with it, so an ack does not prove that its message reached a queue:
///   - If the batch has a return and a missing answer, no ack counts. Example: A and B are both returned, and B's ack brings
///     A's return. Then B's return comes with a later ack, which may be the missing one.
///   - No ack after the first missing answer counts, even without returns. The missing confirm may have completed just
///     after its deadline, with the return of a later message.
///
/// An ack that does not count makes the outcome unknown: the message is published again, and consumers drop the copy.
pub fn decide(batch: &[&Outgoing], answers: &[Confirm]) -> Vec<PublishOutcome> {
    let came_back = |answer: &Confirm| match answer {
        Confirm::Ack { returned } | Confirm::Nack { returned } => *returned,
        Confirm::TooLarge | Confirm::Silence => None,
    };
    let returned: HashSet<_> = answers.iter().filter_map(came_back).collect();
    let silence = answers.iter().position(|answer| *answer == Confirm::Silence);
    let silence = silence.or((answers.len() < batch.len()).then_some(answers.len()));
    let counts = |index: usize| silence.is_none_or(|silence| returned.is_empty() && index < silence);
    let heard = answers.iter().copied().chain(std::iter::repeat(Confirm::Silence));
    batch
        .iter()
        .zip(heard)
        .enumerate()
        .map(|(index, (message, answer))| match answer {
            Confirm::TooLarge => PublishOutcome::Refused(Refusal::TooLarge),
            Confirm::Silence => PublishOutcome::Unknown,
            _ if returned.contains(&message.id) => PublishOutcome::Refused(Refusal::Unroutable),
            Confirm::Ack { .. } if counts(index) => PublishOutcome::Confirmed,
            Confirm::Ack { .. } => PublishOutcome::Unknown,
            Confirm::Nack { .. } => PublishOutcome::Refused(Refusal::Nacked),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Outgoing {
        Outgoing { id: Uuid::new_v4(), event_type: String::new(), lane: 0, body: vec![], traceparent: None }
    }

    #[test]
    fn a_return_counts_for_the_message_that_came_back_whichever_confirm_carried_it() {
        let batch = [message(), message(), message()];
        let plain = Confirm::Ack { returned: None };
        let on_the_neighbor = [plain, Confirm::Ack { returned: Some(batch[0].id) }, plain];
        let unroutable = PublishOutcome::Refused(Refusal::Unroutable);
        assert_eq!(
            decide(&batch.each_ref(), &on_the_neighbor),
            [unroutable, PublishOutcome::Confirmed, PublishOutcome::Confirmed]
        );
    }

    #[test]
    fn where_an_answer_and_a_return_are_missing_no_ack_counts() {
        let batch = [message(), message(), message()];
        let plain = Confirm::Ack { returned: None };
        let first_came_back = Confirm::Ack { returned: Some(batch[0].id) };
        let unroutable = PublishOutcome::Refused(Refusal::Unroutable);
        // The second message's return may be on its way, on the third's confirm.
        let outcomes = decide(&batch.each_ref(), &[plain, first_came_back, Confirm::Silence]);
        assert_eq!(outcomes, [unroutable, PublishOutcome::Unknown, PublishOutcome::Unknown]);
        // The same when the batch was not sent to its end.
        let outcomes = decide(&batch.each_ref(), &[plain, first_came_back]);
        assert_eq!(outcomes, [unroutable, PublishOutcome::Unknown, PublishOutcome::Unknown]);
    }

    #[test]
    fn behind_a_silence_no_ack_counts() {
        let batch = [message(), message(), message()];
        let plain = Confirm::Ack { returned: None };
        let outcomes = decide(&batch.each_ref(), &[plain, Confirm::Silence, plain]);
        assert_eq!(outcomes, [PublishOutcome::Confirmed, PublishOutcome::Unknown, PublishOutcome::Unknown]);
    }

    #[test]
    fn an_unanswered_message_is_unknown() {
        let batch = [message(), message(), message()];
        let answers = [Confirm::Nack { returned: None }, Confirm::Silence];
        let expected =
            [PublishOutcome::Refused(Refusal::Nacked), PublishOutcome::Unknown, PublishOutcome::Unknown];
        assert_eq!(decide(&batch.each_ref(), &answers), expected);
    }
}
