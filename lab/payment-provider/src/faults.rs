//! Faults on demand: the ways in which a payment provider fails, so that tests can see how its callers cope.
//!
//! The list of faults is kept in memory and is empty after a restart. A fault applies only to a valid request: one that is
//! refused anyway uses up no fault.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Json,
    extract::{Request, State},
    response::Response,
};
use serde::{Deserialize, Serialize};
use service::problem::{Problem, read_json};

use crate::{Provider, invalid_request};

/// How long `hang-after` delays its answer: longer than any caller should wait.
const HANG_TIME: Duration = Duration::from_secs(60);

/// How long `slow` waits: by default, and at most.
const DEFAULT_SLOW_MILLISECONDS: u32 = 2_000;
const MAX_SLOW_MILLISECONDS: u32 = 60_000;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Charge,
    Refund,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultKind {
    /// Waits, then handles the request as usual.
    Slow,
    /// Writes nothing and answers 500.
    ErrorBefore,
    /// Handles the request as usual and answers 500: the caller cannot tell it from `ErrorBefore`.
    ErrorAfter,
    /// Handles the request as usual and delays the answer for a minute.
    HangAfter,
    /// Declines a charge, as if the customer had no money. Does not apply to refunds.
    Decline,
}

impl FaultKind {
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

/// One entry of the list, in its JSON form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fault {
    #[serde(rename = "fault")]
    pub(crate) kind: FaultKind,
    /// The share of requests that it applies to.
    #[serde(default = "default_percent")]
    percent: u8,
    /// The number of requests that it applies to before it is used up. `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    times: Option<u32>,
    /// How long `slow` waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    milliseconds: Option<u32>,
}

fn default_percent() -> u8 {
    100
}

impl Fault {
    /// Checks what the types cannot express, and fills in the default wait of `slow`.
    fn checked(mut self) -> Result<Self, &'static str> {
        if !(1..=100).contains(&self.percent) {
            return Err("percent is 1 to 100");
        }
        if self.times == Some(0) {
            return Err("times is 1 or more");
        }
        if self.kind == FaultKind::Slow {
            self.milliseconds.get_or_insert(DEFAULT_SLOW_MILLISECONDS);
        } else if self.milliseconds.is_some() {
            return Err("milliseconds is for slow only");
        }
        if self.milliseconds.is_some_and(|wait| !(1..=MAX_SLOW_MILLISECONDS).contains(&wait)) {
            return Err("milliseconds is 1 to 60000");
        }
        Ok(self)
    }

    /// Whether it applies to this request: decided at random, by `percent`.
    fn applies_to(&self, operation: Operation) -> bool {
        let possible = self.kind != FaultKind::Decline || operation == Operation::Charge;
        possible && fastrand::u8(0..100) < self.percent
    }
}

/// The list of faults, without those that are used up. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults(Arc<Mutex<Vec<Fault>>>);

impl Faults {
    /// Takes the first fault in the list that applies to this request, if any. A fault that is used up leaves the list.
    pub(crate) fn next_for(&self, operation: Operation) -> Option<Fault> {
        let mut faults = self.list();
        let index = faults.iter().position(|fault| fault.applies_to(operation))?;
        let fault = faults[index];
        match &mut faults[index].times {
            Some(1) => drop(faults.remove(index)),
            Some(times) => *times -= 1,
            None => {}
        }
        metrics::counter!("provider_faults_struck_total", "fault" => fault.kind.name()).increment(1);
        Some(fault)
    }

    fn list(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the handler's work with the fault around it.
pub(crate) async fn inject(
    fault: Option<Fault>,
    work: impl Future<Output = Result<Response, Problem>>,
) -> Result<Response, Problem> {
    let Some(fault) = fault else { return work.await };
    match fault.kind {
        // The caller has chosen the status before it made the future.
        FaultKind::Decline => work.await,
        FaultKind::Slow => {
            let wait = fault.milliseconds.unwrap_or(DEFAULT_SLOW_MILLISECONDS);
            tokio::time::sleep(Duration::from_millis(wait.into())).await;
            work.await
        }
        FaultKind::ErrorBefore => Err(Problem::internal_error()),
        FaultKind::ErrorAfter => {
            // The caller never sees this answer.
            drop(work.await);
            Err(Problem::internal_error())
        }
        FaultKind::HangAfter => {
            let answer = work.await;
            tokio::time::sleep(HANG_TIME).await;
            answer
        }
    }
}

/// `GET /faults`: the faults that are not used up.
pub(crate) async fn show(State(provider): State<Provider>) -> Json<Vec<Fault>> {
    Json(provider.faults.list().clone())
}

/// `PUT /faults`: replaces the list. An empty one ends all faults, except for requests that have got theirs already.
pub(crate) async fn replace(
    State(provider): State<Provider>,
    request: Request,
) -> Result<Json<Vec<Fault>>, Problem> {
    let list: Vec<Fault> = read_json(request, invalid_request).await?;
    let mut checked = Vec::with_capacity(list.len());
    for (index, fault) in list.into_iter().enumerate() {
        checked.push(fault.checked().map_err(|rule| invalid_request(format!("[{index}]: {rule}")))?);
    }
    tracing::info!(faults = ?checked, "faults replaced");
    provider.faults.list().clone_from(&checked);
    Ok(Json(checked))
}
