//! The result of a drill.

use load_tests::Summary;
use serde::Serialize;

use crate::reconciliation::{DuplicatesDropped, Reconciliation};
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// Something that has to happen for the drill to prove anything.
#[derive(Debug, Serialize)]
pub(crate) struct Fact {
    /// In words, with the figures.
    pub(crate) what: String,
    /// Whether it was observed. `false` makes the drill inconclusive.
    pub(crate) observed: bool,
}

/// What a refused or unanswered order means for the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusals {
    /// Orders have to be accepted all the time: that is part of the claim.
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
}

impl Report {
    pub(crate) fn new(
        facts: Vec<Fact>,
        load: Summary,
        refusals: Refusals,
        reconciliation: Reconciliation,
        duplicates_dropped: DuplicatesDropped,
    ) -> Self {
        let (verdict, reason) = judge(&facts, &load, refusals, &reconciliation);
        Self { verdict, reason, facts, load, reconciliation, duplicates_dropped }
    }

    /// Adds a fact. One that was not observed turns a verdict that held into an inconclusive one.
    pub(crate) fn require(&mut self, fact: Fact) {
        if !fact.observed && self.verdict == Verdict::Held {
            (self.verdict, self.reason) = (Verdict::Inconclusive, not_observed(&fact));
        }
        self.facts.push(fact);
    }

    /// Adds a part of the claim. One that was not observed breaks it.
    pub(crate) fn claim(&mut self, fact: Fact) {
        if !fact.observed {
            self.refute(format!("not observed: {}", fact.what));
        }
        self.facts.push(fact);
    }

    /// Makes the verdict broken, whatever the reconciliation says.
    pub(crate) fn refute(&mut self, reason: String) {
        if self.verdict == Verdict::Broken {
            self.reason = format!("{}; and {reason}", self.reason);
        } else {
            (self.verdict, self.reason) = (Verdict::Broken, reason);
        }
    }

    /// Prints the table, the facts and the verdict.
    pub(crate) fn print(&self, terminal: &Terminal) {
        terminal.print("");
        terminal.print_all(self.reconciliation.table(self.duplicates_dropped));
        terminal.print("");
        for fact in &self.facts {
            let observed = if fact.observed { "observed:    " } else { "NOT observed:" };
            terminal.print(format!("  {observed} {}", fact.what));
        }
        terminal.print(format!("  load:         {}", self.load));
        terminal.print_verdict(self.verdict, &self.reason);
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
        return (Verdict::Inconclusive, not_observed(fact));
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

fn not_observed(fact: &Fact) -> String {
    format!("nothing is proven, because this was not observed: {}", fact.what)
}
