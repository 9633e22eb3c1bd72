//! The model's conclusions from the answers of a wave are those of the product.

use messaging::{
    Outgoing, PublishOutcome,
    confirms::{Confirm, decide},
};
use model::{Outcome, answers, answers::Answer};
use uuid::Uuid;

/// All answers to waves of up to three messages: more than the model sends.
fn waves() -> Vec<Vec<Answer>> {
    let mut waves = vec![];
    for length in 1..=3 {
        let returned = || (0..length).map(Some).chain([None]);
        let acks = returned().map(|returned| Answer::Ack { returned });
        let nacks = returned().map(|returned| Answer::Nack { returned });
        let answers: Vec<_> = acks.chain(nacks).chain([Answer::Silence]).collect();
        let mut of_length = vec![vec![]];
        for _ in 0..length {
            let extend = |wave: &Vec<Answer>| {
                answers.iter().map(|answer| [&wave[..], &[*answer]].concat()).collect::<Vec<_>>()
            };
            of_length = of_length.iter().flat_map(extend).collect();
        }
        waves.extend(of_length);
    }
    waves
}

#[test]
fn model_concludes_what_the_publisher_decides() {
    let message = |id| Outgoing { id, event_type: String::new(), lane: 0, body: vec![], traceparent: None };
    let messages = [1, 2, 3].map(|number| message(Uuid::from_u128(number)));
    let batch = messages.each_ref();
    for wave in waves() {
        let id = |message: usize| batch[message].id;
        let confirms: Vec<_> = wave
            .iter()
            .map(|answer| match *answer {
                Answer::Ack { returned } => Confirm::Ack { returned: returned.map(id) },
                Answer::Nack { returned } => Confirm::Nack { returned: returned.map(id) },
                Answer::Silence => Confirm::Silence,
            })
            .collect();
        let decided: Vec<_> = decide(&batch[..wave.len()], &confirms)
            .into_iter()
            .map(|outcome| match outcome {
                PublishOutcome::Confirmed => Outcome::Confirmed,
                PublishOutcome::Refused(_) => Outcome::Refused,
                PublishOutcome::Unknown => Outcome::Unknown,
            })
            .collect();
        assert_eq!(answers::decide(&wave, None), decided, "{wave:?}");
    }
}
