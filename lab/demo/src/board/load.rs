//! The orders that the board places: one by a click, or a constant rate.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::Result;
use load_tests::{Answer, Load, Outcome};
use serde::Serialize;
use std::time::Duration;

use crate::ledger::Ledger;
use crate::load::StoppableLoad;

/// The most orders a second that a click can ask for.
pub(crate) const MAX_RATE: u32 = 200;

/// How requests were answered.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Answers {
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    /// No answer in time, or none at all.
    pub(crate) failed: u64,
}

/// At most one load at a time.
#[derive(Debug)]
pub(crate) struct BoardLoad {
    url: String,
    ledger: Arc<Ledger>,
    running: Mutex<Option<(u32, StoppableLoad)>>,
    answers: Arc<Mutex<Answers>>,
}

impl BoardLoad {
    pub(crate) fn new(url: &str, ledger: Arc<Ledger>) -> Self {
        Self { url: url.to_owned(), ledger, running: Mutex::default(), answers: Arc::default() }
    }

    /// Orders per second, now.
    pub(crate) fn rate(&self) -> u32 {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, |(rate, _)| *rate)
    }

    /// Places so many orders a second from now on.
    pub(crate) async fn set_rate(&self, rate: u32) -> Result<()> {
        let rate = rate.min(MAX_RATE);
        let next = (rate > 0).then(|| {
            let load = Load::new(self.url.clone(), rate, Duration::MAX);
            let (record, answers) = (self.ledger.recorder(), self.answers.clone());
            (
                rate,
                StoppableLoad::run(load, move |outcome: Outcome| {
                    let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
                    match &outcome.answer {
                        Answer::Accepted(_) => answers.accepted += 1,
                        Answer::Refused(..) => answers.refused += 1,
                        _ => answers.failed += 1,
                    }
                    drop(answers);
                    record(outcome);
                }),
            )
        });
        let before =
            std::mem::replace(&mut *self.running.lock().unwrap_or_else(PoisonError::into_inner), next);
        if let Some((_, load)) = before {
            load.stop().await?;
        }
        Ok(())
    }

    /// How requests were answered since the board began.
    pub(crate) fn answers(&self) -> Answers {
        *self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn record(&self, id: uuid::Uuid) {
        self.ledger.record(id, SystemTime::now());
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}
