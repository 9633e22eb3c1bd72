//! The result of a drill.

use std::time::Duration;

use load_tests::Summary;
use serde::Serialize;

use super::objectives;
use crate::Verdict;
use crate::fault::Fact;
use crate::reconciliation::{DuplicatesDropped, Reconciliation};
use crate::terminal::Terminal;

/// The observations of a drill before the verdict.
#[derive(Default)]
pub(crate) struct Found {
    /// Conditions that must be observed for the drill to prove anything.
    pub(crate) facts: Vec<Fact>,
    /// Parts of the claim. One that was not observed breaks it.
    pub(crate) claims: Vec<Fact>,
    /// How long the system took to recover, in a drill that measures it.
    pub(crate) recovery: Option<Duration>,
}

/// What a refused or unanswered order means for the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusals {
    /// Orders must be accepted all the time: that is part of the claim.
    BreakTheClaim,
    /// The fault prevents that orders are accepted. A client without a 201 was promised nothing.
    AreExpected,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub(crate) verdict: Verdict,
    pub(crate) reason: String,
    pub(crate) facts: Vec<Fact>,
    pub(crate) load: Summary,
    pub(crate) reconciliation: Reconciliation,
    /// Dropped during this drill; `null` means unknown.
    pub(crate) duplicates_dropped: DuplicatesDropped,
    /// The recovery as one line, of a drill that measures it.
    pub(crate) objectives: Option<String>,
}

impl Report {
    pub(crate) fn new(
        found: Found,
        load: Summary,
        refusals: Refusals,
        reconciliation: Reconciliation,
        duplicates_dropped: DuplicatesDropped,
    ) -> Self {
        let Found { mut facts, claims, recovery } = found;
        let (mut verdict, mut reason) = judge(&facts, &load, refusals, &reconciliation);
        for claim in claims.iter().filter(|claim| !claim.observed) {
            let not = format!("not as claimed: {}", claim.what);
            reason = if verdict == Verdict::Broken { format!("{reason}; and {not}") } else { not };
            verdict = Verdict::Broken;
        }
        facts.extend(claims);
        let objectives =
            recovery.map(|recovery| objectives::line(recovery, &reconciliation, duplicates_dropped));
        Self { verdict, reason, facts, load, reconciliation, duplicates_dropped, objectives }
    }

    /// Prints the table, the facts and the verdict.
    pub(crate) fn print(&self, terminal: &Terminal) {
        terminal.print("");
        terminal.print_all(self.reconciliation.table(self.duplicates_dropped));
        terminal.print("");
        for line in self.observations() {
            terminal.print(format!("  {line}"));
        }
        terminal.print_verdict(self.verdict, &self.reason);
    }

    /// What was observed, one line each.
    pub(super) fn observations(&self) -> impl Iterator<Item = String> {
        let word = |fact: &Fact| if fact.observed { "observed" } else { "NOT AS EXPECTED" };
        let facts = self.facts.iter().map(move |fact| format!("{}: {}", word(fact), fact.what));
        facts.chain([format!("load: {}", self.load)]).chain(self.objectives.clone())
    }
}

/// The share of orders that may fail for reasons of the machine while the claim is that orders are accepted.
const TOLERATED_FAILURES: f64 = 0.01;

fn judge(
    facts: &[Fact],
    load: &Summary,
    refusals: Refusals,
    reconciliation: &Reconciliation,
) -> (Verdict, String) {
    if let Some(broken) = reconciliation.broken() {
        return (Verdict::Broken, broken);
    }
    if reconciliation.in_progress() + reconciliation.parked > 0 {
        let (progress, parked) = (reconciliation.progress(), reconciliation.parked);
        let reason = format!("{progress}, {parked} events parked, long after everything was repaired");
        return (Verdict::Broken, reason);
    }
    // No drill may park an event, so parked events were counted above. Dead letters may be older than the drill.
    let waiting = reconciliation.waiting_for_operator();
    if waiting > 0 {
        let what = format!("{waiting} dead letters wait for an operator");
        return (Verdict::Inconclusive, format!("nothing is lost, but {what}: `cargo demo failed list`"));
    }
    let unanswered = load.refused_in_all() + load.failed;
    if refusals == Refusals::BreakTheClaim && unanswered as f64 > load.sent as f64 * TOLERATED_FAILURES {
        let what = format!("{unanswered} of {} orders were refused or got no answer", load.sent);
        return (Verdict::Broken, format!("nothing is lost, but {what}"));
    }
    if let Some(fact) = facts.iter().find(|fact| !fact.observed) {
        let reason = format!("nothing is proven, because this was not observed: {}", fact.what);
        return (Verdict::Inconclusive, reason);
    }
    let (accepted, confirmed, cancelled) =
        (load.accepted, reconciliation.confirmed, reconciliation.cancelled);
    (
        Verdict::Held,
        format!(
            "{accepted} orders accepted, none lost, none doubled, no effect without its order; {confirmed} of all \
             orders are confirmed, {cancelled} cancelled, and money and stock agree"
        ),
    )
}
