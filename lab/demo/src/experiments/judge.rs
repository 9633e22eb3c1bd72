//! Whether a system held, and if not, which invariant broke.

use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;

use crate::reconciliation::{Reconciliation, Wait};
use crate::running_system::RunningSystem;

/// How long nothing may move. A relay polls every second and makes a full scan every three; a payment that a killed process was
/// handling is due again after six seconds, and no other payment backs off in these systems. On a busy machine nothing else may
/// happen until several seconds later.
const STILL_FOR: Duration = Duration::from_secs(20);

/// How long a system that keeps changing is observed.
const JUDGE_DEADLINE: Duration = Duration::from_secs(120);

/// An invariant that broke, and what was seen.
#[derive(Clone, Debug, Serialize)]
pub struct Breach {
    /// `I1` to `I14`, as in `docs/guarantees.md`.
    pub invariant: &'static str,
    /// What was seen.
    pub what: String,
}

impl Breach {
    pub(super) fn new(invariant: &'static str, what: impl Into<String>) -> Option<Self> {
        Some(Self { invariant, what: what.into() })
    }
}

/// Waits until nothing is pending or moves any more, and returns what is wrong then. All processes must run.
///
/// # Errors
/// When something is still in progress at the deadline.
pub(super) async fn judge(system: &RunningSystem) -> Result<Option<Breach>> {
    let wait = Wait::until_decided(testbed::longer(JUDGE_DEADLINE)).or_still_for(STILL_FOR);
    let settled = system.settle_acknowledged(wait).await?;
    match settled.undecided() {
        None => Ok(breach(&settled.reconciliation)),
        Some(why) => bail!("still in progress: {why}"),
    }
}

fn breach(reconciliation: &Reconciliation) -> Option<Breach> {
    // An effect that may still arrive is reported only if nothing else is wrong.
    let findings = &reconciliation.findings;
    if let Some(found) = findings.iter().find(|found| !found.may_arrive()).or(findings.first()) {
        return Breach::new(found.invariant(), format!("{}: {}", found.what, found.count));
    }
    if reconciliation.in_progress() > 0 {
        return Breach::new("I8", reconciliation.progress());
    }
    None
}
