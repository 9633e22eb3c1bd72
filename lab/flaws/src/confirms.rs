//! What a publisher concludes from the answers of the broker, with one protection left out.

use messaging::{
    Outgoing, PublishOutcome, Refusal,
    confirms::{Confirm, decide as decide_with_all_protections},
};

use crate::Flaw;

/// Decides as the product does, or as a flaw does.
pub fn decide(flaw: Option<Flaw>, batch: &[&Outgoing], answers: &[Confirm]) -> Vec<PublishOutcome> {
    let returned = |answer: &Confirm| match answer {
        Confirm::Ack { returned } | Confirm::Nack { returned } => *returned,
        Confirm::TooLarge | Confirm::Silence => None,
    };
    let all_returned: Vec<_> = answers.iter().filter_map(returned).collect();
    let came_back = |message: &Outgoing, answer: &Confirm| match flaw {
        Some(Flaw::ReturnTrustedToItsConfirm) => returned(answer).is_some(),
        _ => all_returned.contains(&message.id),
    };
    let outcome = |(message, answer): (&&Outgoing, &Confirm)| match answer {
        Confirm::TooLarge => PublishOutcome::Refused(Refusal::TooLarge),
        Confirm::Silence => PublishOutcome::Unknown,
        _ if came_back(message, answer) => PublishOutcome::Refused(Refusal::Unroutable),
        Confirm::Ack { .. } => PublishOutcome::Confirmed,
        Confirm::Nack { .. } => PublishOutcome::Refused(Refusal::Nacked),
    };
    match flaw {
        Some(Flaw::ConfirmsIgnored) => vec![PublishOutcome::Confirmed; batch.len()],
        Some(Flaw::ReturnTrustedToItsConfirm | Flaw::SilenceIgnored) => {
            batch.iter().zip(answers).map(outcome).collect()
        }
        _ => decide_with_all_protections(batch, answers),
    }
}
