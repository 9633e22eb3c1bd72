//! Faults on demand: the ways in which a payment provider fails, so that its callers can be watched while it does.
//!
//! They are held in memory, and gone after a restart. Only a request that is right is struck: one that is refused
//! anyhow uses nothing up.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{Json, extract::State, response::Response};
use serde::{Deserialize, Serialize};

use crate::{
    Provider,
    problem::{Problem, ProblemJson},
};

/// How long a request hangs that is not to be answered: longer than any caller should wait.
const HANG: Duration = Duration::from_secs(60);

/// How long `slow` waits if nothing is said, and the longest that it can be told, in milliseconds.
const SLOW: u32 = 2_000;
const SLOWEST: u32 = 60_000;

/// What a request does to the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Charge,
    Refund,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Waits, then does as usual.
    Slow,
    /// Does nothing, and answers 500.
    ErrorBefore,
    /// Does as usual, and answers 500: the caller cannot tell it from the one before.
    ErrorAfter,
    /// Does as usual, and keeps the answer for a minute.
    HangAfter,
    /// Declines a charge, as if the customer had no money. Refunds are not struck.
    Decline,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::ErrorBefore => "error-before",
            Self::ErrorAfter => "error-after",
            Self::HangAfter => "hang-after",
            Self::Decline => "decline",
        }
    }
}

/// One entry of the list, as it is sent and shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fault {
    #[serde(rename = "fault")]
    pub(crate) kind: Kind,
    /// How many of a hundred requests it strikes.
    #[serde(default = "all")]
    percent: u8,
    /// How many it strikes before it is used up; without it, no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    times: Option<u32>,
    /// How long `slow` waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    milliseconds: Option<u32>,
}

fn all() -> u8 {
    100
}

impl Fault {
    /// Checks what the types cannot, and says how slow `slow` is.
    fn checked(mut self) -> Result<Self, &'static str> {
        if !(1..=100).contains(&self.percent) {
            return Err("percent is 1 to 100");
        }
        if self.times == Some(0) {
            return Err("times is 1 or more");
        }
        if self.kind == Kind::Slow {
            self.milliseconds.get_or_insert(SLOW);
        } else if self.milliseconds.is_some() {
            return Err("milliseconds belongs to slow alone");
        }
        if self.milliseconds.is_some_and(|wait| !(1..=SLOWEST).contains(&wait)) {
            return Err("milliseconds is 1 to 60000");
        }
        Ok(self)
    }

    fn strikes(&self, operation: Operation) -> bool {
        let concerned = self.kind != Kind::Decline || operation == Operation::Charge;
        concerned && fastrand::u8(0..100) < self.percent
    }
}

/// What is left of the list that was put last. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults(Arc<Mutex<Vec<Fault>>>);

impl Faults {
    /// The first fault in the list that strikes this request, if one does. A fault that is used up leaves the list.
    pub(crate) fn strike(&self, operation: Operation) -> Option<Fault> {
        let mut faults = self.list();
        let index = faults.iter().position(|fault| fault.strikes(operation))?;
        let struck = faults[index];
        match &mut faults[index].times {
            Some(1) => drop(faults.remove(index)),
            Some(times) => *times -= 1,
            None => {}
        }
        metrics::counter!("provider_faults_struck_total", "fault" => struck.kind.name()).increment(1);
        Some(struck)
    }

    fn list(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does `work` in the way that the fault wants it.
pub(crate) async fn suffer(
    struck: Option<Fault>,
    work: impl Future<Output = Result<Response, Problem>>,
) -> Result<Response, Problem> {
    let Some(fault) = struck else { return work.await };
    match fault.kind {
        // Whose status was decided before the work was made.
        Kind::Decline => work.await,
        Kind::Slow => {
            tokio::time::sleep(Duration::from_millis(fault.milliseconds.unwrap_or(SLOW).into())).await;
            work.await
        }
        Kind::ErrorBefore => Err(Problem::struck()),
        Kind::ErrorAfter => {
            // Whatever the answer was: nobody gets to know it.
            drop(work.await);
            Err(Problem::struck())
        }
        Kind::HangAfter => {
            let answer = work.await;
            tokio::time::sleep(HANG).await;
            answer
        }
    }
}

/// `GET /faults`: what is left.
pub(crate) async fn show(State(provider): State<Provider>) -> Json<Vec<Fault>> {
    Json(provider.faults.list().clone())
}

/// `PUT /faults`: this list instead of the last one. An empty one ends all faults, except for requests that they have
/// struck already.
pub(crate) async fn replace(
    State(provider): State<Provider>,
    ProblemJson(list): ProblemJson<Vec<Fault>>,
) -> Result<Json<Vec<Fault>>, Problem> {
    let mut checked = Vec::with_capacity(list.len());
    for (index, fault) in list.into_iter().enumerate() {
        checked.push(fault.checked().map_err(|wrong| Problem::invalid(format!("[{index}]: {wrong}")))?);
    }
    tracing::info!(faults = ?checked, "faults on demand");
    provider.faults.list().clone_from(&checked);
    Ok(Json(checked))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(list: &[(Kind, u8, Option<u32>)]) -> Faults {
        let list =
            list.iter().map(|&(kind, percent, times)| Fault { kind, percent, times, milliseconds: None });
        Faults(Arc::new(Mutex::new(list.collect())))
    }

    fn struck(faults: &Faults, operation: Operation) -> Option<Kind> {
        faults.strike(operation).map(|fault| fault.kind)
    }

    #[test]
    fn faults_strike_in_their_order_as_often_as_they_are_told() {
        let faults = faults(&[(Kind::ErrorBefore, 100, Some(2)), (Kind::HangAfter, 100, Some(1))]);
        let kinds: Vec<_> = (0..4).map(|_| struck(&faults, Operation::Charge)).collect();
        assert_eq!(kinds, [Some(Kind::ErrorBefore), Some(Kind::ErrorBefore), Some(Kind::HangAfter), None]);
        assert!(faults.list().is_empty());
    }

    #[test]
    fn a_refund_is_never_declined() {
        let faults = faults(&[(Kind::Decline, 100, Some(1)), (Kind::Slow, 100, None)]);
        assert_eq!(struck(&faults, Operation::Refund), Some(Kind::Slow));
        assert_eq!(struck(&faults, Operation::Charge), Some(Kind::Decline));
        assert_eq!(struck(&faults, Operation::Charge), Some(Kind::Slow));
    }

    #[test]
    fn a_fault_of_thirty_percent_strikes_about_every_third_request() {
        let faults = faults(&[(Kind::ErrorBefore, 30, None)]);
        let strikes = (0..10_000).filter(|_| struck(&faults, Operation::Charge).is_some()).count();
        // Ten standard deviations on either side.
        assert!((2_540..=3_460).contains(&strikes), "{strikes}");
    }
}
