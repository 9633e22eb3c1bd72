//! The result of a drill.

use std::time::Duration;

use load_tests::Summary;
use serde::Serialize;

use super::objectives;
use crate::Verdict;
use crate::fault::Fact;
use crate::reconciliation::{DuplicatesDropped, Kind, Reconciliation, Settled};
use crate::terminal::Terminal;

/// The observations of a drill before the verdict.
#[derive(Default)]
pub(crate) struct Found {
    /// What the drill has done. One that was not observed: nothing is proven.
    pub(crate) injected: Vec<Fact>,
    /// What the system has done. One that was not observed breaks the claim.
    pub(crate) promised: Vec<Fact>,
    /// Orders of the drill's own clients that may exist although no answer came.
    pub(crate) unanswered: u64,
    /// Whether the command has started the system, so that nobody else places orders.
    pub(crate) is_only_client: bool,
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
        before: &Reconciliation,
        settled: Settled,
        duplicates_dropped: DuplicatesDropped,
    ) -> Self {
        let (mut verdict, mut reason) = judge(&found, &load, refusals, before, &settled);
        let Found { injected: mut facts, promised, recovery, .. } = found;
        let reconciliation = settled.reconciliation;
        for promise in promised.iter().filter(|promise| !promise.observed) {
            let not = format!("not as claimed: {}", promise.what);
            reason = if verdict == Verdict::Broken { format!("{reason}; and {not}") } else { not };
            verdict = Verdict::Broken;
        }
        facts.extend(promised);
        let objectives =
            recovery.map(|recovery| objectives::line(recovery, &reconciliation, duplicates_dropped));
        Self { verdict, reason, facts, load, reconciliation, duplicates_dropped, objectives }
    }

    /// Whether the drill ended as it should: held, or broken in these ways and in no other.
    pub(crate) fn breaks_only(&self, kinds: &[Kind]) -> bool {
        if kinds.is_empty() {
            return self.verdict == Verdict::Held;
        }
        let broken: Vec<_> = self.reconciliation.affected.keys().collect();
        let is_expected = !broken.is_empty() && broken.iter().all(|kind| kinds.contains(kind));
        is_expected && self.verdict == Verdict::Broken && self.facts.iter().all(|fact| fact.observed)
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
    found: &Found,
    load: &Summary,
    refusals: Refusals,
    before: &Reconciliation,
    settled: &Settled,
) -> (Verdict, String) {
    if let Some(broken) = settled.broken() {
        return (Verdict::Broken, broken);
    }
    if let Some(why) = settled.undecided() {
        return (Verdict::Inconclusive, format!("nothing is proven, because it is not over: {why}"));
    }
    let reconciliation = &settled.reconciliation;
    if reconciliation.in_progress() > 0 {
        let progress = reconciliation.progress();
        return (Verdict::Broken, format!("nothing moves although every part is ready: {progress}"));
    }
    let older = before.waiting_for_operator();
    let waiting = reconciliation.waiting_for_operator().saturating_sub(older);
    if waiting > 0 {
        let what = format!("{waiting} messages or events were set aside: `cargo demo failed list`");
        return (Verdict::Broken, format!("nothing is lost, but {what}"));
    }
    let unknown = |read: &Reconciliation| read.orders.saturating_sub(read.acknowledged);
    let phantom = unknown(reconciliation).saturating_sub(unknown(before));
    // After a 5xx an order may exist (docs/http.md).
    let server_errors: u64 = load.refused.iter().filter(|(status, _)| **status >= 500).map(|(_, n)| n).sum();
    let unanswered = load.failed + server_errors + found.unanswered;
    if found.is_only_client && phantom > unanswered {
        let what =
            format!("{phantom} orders exist that no client was told of, and {unanswered} got no answer");
        return (Verdict::Broken, what);
    }
    let unanswered = load.refused_in_all() + load.failed;
    if refusals == Refusals::BreakTheClaim && unanswered as f64 > load.sent as f64 * TOLERATED_FAILURES {
        let what = format!("{unanswered} of {} orders were refused or got no answer", load.sent);
        return (Verdict::Broken, format!("nothing is lost, but {what}"));
    }
    if let Some(fact) = found.injected.iter().find(|fact| !fact.observed) {
        let reason = format!("nothing is proven, because this was not observed: {}", fact.what);
        return (Verdict::Inconclusive, reason);
    }
    let (accepted, confirmed, cancelled) =
        (load.accepted, reconciliation.confirmed, reconciliation.cancelled);
    let older = if older == 0 { String::new() } else { format!("; {older} set aside before this drill") };
    (
        Verdict::Held,
        format!(
            "{accepted} orders accepted, none lost, none doubled, no effect without its order; {confirmed} of all \
             orders are confirmed, {cancelled} cancelled, and money and stock agree{older}"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reconciliation::{Ending, Finding, Kind, SetAside};

    /// Judges a drill in which the records became so, after an empty system, and `failed` orders got no answer.
    fn judged(reconciliation: Reconciliation, ending: Ending, failed: u64) -> (Verdict, String) {
        let load = Summary { sent: 10 + failed, accepted: 10, failed, ..Summary::default() };
        let before = Reconciliation { orders: 3, set_aside: vec![aside(1)], ..Reconciliation::default() };
        let settled = Settled { reconciliation, ending };
        let found = Found { is_only_client: true, ..Found::default() };
        judge(&found, &load, Refusals::AreExpected, &before, &settled)
    }

    fn aside(count: u64) -> SetAside {
        SetAside { place: "billing".to_owned(), discarded: false, count, first: vec![] }
    }

    /// Three orders and a dead letter were there before.
    fn good() -> Reconciliation {
        Reconciliation {
            orders: 13,
            acknowledged: 10,
            set_aside: vec![aside(1)],
            ..Reconciliation::default()
        }
    }

    #[test]
    fn a_drill_is_judged_by_what_is_new() {
        let (verdict, reason) = judged(good(), Ending::Quiescent, 0);
        assert_eq!(verdict, Verdict::Held, "{reason}");
        assert!(reason.contains("1 set aside before this drill"), "{reason}");
        let set_aside = Reconciliation { set_aside: vec![aside(2)], ..good() };
        assert_eq!(judged(set_aside, Ending::Quiescent, 0).0, Verdict::Broken);
    }

    #[test]
    fn an_order_whose_client_was_refused_breaks_and_one_without_an_answer_does_not() {
        let unknown = || Reconciliation { orders: 14, ..good() };
        let (verdict, reason) = judged(unknown(), Ending::Quiescent, 0);
        assert!(verdict == Verdict::Broken && reason.contains("1 orders exist"), "{reason}");
        assert_eq!(judged(unknown(), Ending::Quiescent, 1).0, Verdict::Held);
    }

    #[test]
    fn what_may_still_arrive_proves_nothing_and_what_cannot_breaks() {
        let (place, what) = ("billing".to_owned(), "no payment exists".to_owned());
        let findings = vec![Finding { kind: Kind::Missing, place, what, count: 1, first: vec![] }];
        let missing = || Reconciliation {
            open: 1,
            affected: [(Kind::Missing, 1)].into(),
            findings: findings.clone(),
            ..good()
        };
        let waits = Ending::InProgress("a message waits in a queue".to_owned());
        assert_eq!(judged(missing(), waits, 0).0, Verdict::Inconclusive);
        assert_eq!(judged(missing(), Ending::Lost, 0).0, Verdict::Broken);
        let open = Reconciliation { open: 1, ..good() };
        assert_eq!(judged(open, Ending::Still, 0).0, Verdict::Broken);
    }
}
