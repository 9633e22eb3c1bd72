//! The orders that the board places: one by a click, or a constant rate.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use load_tests::{Answer, Load, Outcome};
use serde::{Deserialize, Serialize};

use crate::ledger::Ledger;
use crate::load::RunningLoad;

/// The most orders a second that a click can ask for.
const MAX_RATE: u32 = 200;

/// An order that is not answered so soon is left hanging, in the eyes of a client.
const PROMPT: Duration = Duration::from_secs(2);

/// How many answers are remembered: those of more than the longest fault.
const REMEMBERED: usize = 30_000;

/// How an order is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NewOrders {
    Accepted,
    /// By an answer, or because no connection was accepted.
    Refused,
    /// No answer within two seconds.
    Hanging,
}

/// How many orders were answered how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Answers {
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    pub(crate) hanging: u64,
}

/// At most one load at a time.
#[derive(Debug)]
pub(crate) struct BoardLoad {
    url: String,
    ledger: Arc<Ledger>,
    running: Mutex<Option<(u32, RunningLoad)>>,
    /// When each order was due, and how it was answered.
    answers: Arc<Mutex<VecDeque<(SystemTime, NewOrders)>>>,
}

impl BoardLoad {
    pub(crate) fn new(url: &str, ledger: Arc<Ledger>) -> Self {
        Self { url: url.to_owned(), ledger, running: Mutex::default(), answers: Arc::default() }
    }

    /// Orders per second, now.
    pub(crate) fn rate(&self) -> u32 {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, |(rate, _)| *rate)
    }

    /// Places so many orders a second from now on. Returns when all earlier ones are answered, or past their deadline.
    pub(crate) async fn set_rate(&self, rate: u32) -> Result<()> {
        let rate = rate.min(MAX_RATE);
        let next = (rate > 0).then(|| (rate, self.start(rate)));
        let before =
            std::mem::replace(&mut *self.running.lock().unwrap_or_else(PoisonError::into_inner), next);
        if let Some((_, mut load)) = before {
            load.stop().await?;
        }
        Ok(())
    }

    fn start(&self, rate: u32) -> RunningLoad {
        let load = Load::new(self.url.clone(), rate, Duration::MAX);
        let (record, answers) = (self.ledger.recorder(), self.answers.clone());
        RunningLoad::start(load, move |outcome: Outcome| {
            if let Some(kind) = kind(&outcome) {
                let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
                answers.push_back((outcome.due, kind));
                if answers.len() > REMEMBERED {
                    answers.pop_front();
                }
            }
            record(outcome);
        })
    }

    /// How the orders were answered that were due between two moments, as far as it is known.
    pub(crate) fn answers_between(&self, from: SystemTime, to: SystemTime) -> Answers {
        let mut found = Answers::default();
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, kind) in answers.iter().filter(|(due, _)| (from..to).contains(due)) {
            match kind {
                NewOrders::Accepted => found.accepted += 1,
                NewOrders::Refused => found.refused += 1,
                NewOrders::Hanging => found.hanging += 1,
            }
        }
        found
    }

    pub(crate) fn record(&self, id: uuid::Uuid) {
        self.ledger.record(id, SystemTime::now());
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

/// What a client has seen. `None`: the order was never sent.
fn kind(outcome: &Outcome) -> Option<NewOrders> {
    let late = outcome.finished.duration_since(outcome.due).is_ok_and(|took| took > PROMPT);
    Some(match &outcome.answer {
        Answer::Shed => return None,
        _ if late => NewOrders::Hanging,
        Answer::Accepted(_) => NewOrders::Accepted,
        Answer::Refused(_) => NewOrders::Refused,
        // At once: the connection was refused, or it was cut.
        Answer::Failed(_) => NewOrders::Refused,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_comes_late_leaves_the_client_hanging() {
        let due = SystemTime::now();
        let id = uuid::Uuid::nil();
        for (answer, after, expected) in [
            (Answer::Accepted(id), 1, Some(NewOrders::Accepted)),
            (Answer::Accepted(id), 4, Some(NewOrders::Hanging)),
            (Answer::Failed("time-out".into()), 5, Some(NewOrders::Hanging)),
            (Answer::Failed("no connection".into()), 0, Some(NewOrders::Refused)),
            (Answer::Refused(503), 0, Some(NewOrders::Refused)),
            (Answer::Shed, 0, None),
        ] {
            let finished = due + Duration::from_secs(after);
            assert_eq!(kind(&Outcome { number: 0, due, finished, answer }), expected, "after {after} s");
        }
    }
}
