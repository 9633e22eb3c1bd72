//! What a drill found, and what follows from it.

use anyhow::Result;
use load_tests::Summary;
use serde::Serialize;

use super::Drill;
use crate::audit::{Audit, Dropped, Kind};
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// Something that must have happened for the drill to prove anything.
#[derive(Debug, Serialize)]
pub(crate) struct Fact {
    /// In words, with the figures.
    pub(crate) what: String,
    /// Whether it was observed. `false` makes the drill inconclusive.
    pub(crate) observed: bool,
}

/// What an order that is refused, or not answered, says about the promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusals {
    /// Orders have to be accepted throughout: it is part of the claim.
    BreakTheClaim,
    /// Something was broken without which none can be accepted: whoever got no answer was promised nothing.
    AreExpected,
}

/// The outcome of a drill.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub(crate) verdict: Verdict,
    pub(crate) reason: String,
    pub(crate) facts: Vec<Fact>,
    pub(crate) load: Summary,
    pub(crate) audit: Audit,
    /// Dropped during this drill; `null` where a service did not say.
    pub(crate) duplicates_dropped: Dropped,
}

impl Report {
    pub(crate) fn new(
        facts: Vec<Fact>,
        load: Summary,
        refusals: Refusals,
        audit: Audit,
        duplicates_dropped: Dropped,
    ) -> Self {
        let (verdict, reason) = judge(&facts, &load, refusals, &audit);
        Self { verdict, reason, facts, load, audit, duplicates_dropped }
    }

    /// One more thing that must have happened. It can only take away from the verdict.
    pub(crate) fn require(&mut self, fact: Fact) {
        if !fact.observed && self.verdict == Verdict::Held {
            self.verdict = Verdict::Inconclusive;
            self.reason = format!("nothing is proven, because this was not observed: {}", fact.what);
        }
        self.facts.push(fact);
    }

    /// The claim is untrue, whatever the books say.
    pub(crate) fn refute(&mut self, reason: String) {
        if self.verdict == Verdict::Broken {
            self.reason = format!("{}; and {reason}", self.reason);
        } else {
            (self.verdict, self.reason) = (Verdict::Broken, reason);
        }
    }

    /// The table and the verdict for people; the whole for machines.
    pub(crate) fn show(&self, drill: &Drill, terminal: &Terminal) -> Result<()> {
        terminal.say("");
        for line in self.audit.table(self.duplicates_dropped) {
            terminal.say(line);
        }
        terminal.say("");
        for fact in &self.facts {
            terminal.say(format!(
                "  {} {}",
                if fact.observed { "observed:    " } else { "NOT observed:" },
                fact.what
            ));
        }
        let load = &self.load;
        terminal.say(format!("  load:         {load}"));
        terminal.say("");
        terminal.say(format!("VERDICT  {}: {}", self.verdict.word(), self.reason));
        terminal.document(&serde_json::json!({ "drill": drill.name, "claim": drill.claim, "report": self }))
    }
}

/// One order in a hundred may fail for reasons of the machine before "orders are accepted" is called untrue.
const TOLERATED: f64 = 0.01;

fn judge(facts: &[Fact], load: &Summary, refusals: Refusals, audit: &Audit) -> (Verdict, String) {
    let [missing, doubled, phantom, sums, disorder] =
        [Kind::Missing, Kind::Doubled, Kind::Phantom, Kind::Sums, Kind::Disorder]
            .map(|kind| audit.count_all(kind));
    if missing + doubled + phantom + sums + disorder > 0 {
        let what = format!(
            "{missing} missing, {doubled} doubled, {phantom} from nowhere, {sums} wrong sums, {disorder} out of order"
        );
        return (Verdict::Broken, format!("{what}; the ids are above"));
    }
    if audit.under_way() + audit.parked > 0 {
        let Audit { owed, payments_owed, open, parked, .. } = audit;
        let what = format!(
            "{owed} events still unpublished, {payments_owed} payments owed, {open} orders open, {parked} set aside"
        );
        return (Verdict::Broken, format!("{what}, although everything has been running again for a while"));
    }
    // Parked events were counted above: no drill may bring one about. What a consumer sets aside may be of before.
    if audit.set_aside(false) > 0 {
        let what = format!("{} messages wait for an operator", audit.set_aside(false));
        return (Verdict::Inconclusive, format!("nothing is lost, but {what}: `cargo demo aside list`"));
    }
    let unanswered = load.refused_in_all() + load.failed;
    if refusals == Refusals::BreakTheClaim && unanswered as f64 > load.sent as f64 * TOLERATED {
        let what = format!("{unanswered} of {} orders were refused or got no answer", load.sent);
        return (Verdict::Broken, format!("nothing is lost, but {what}"));
    }
    if let Some(fact) = facts.iter().find(|fact| !fact.observed) {
        return (
            Verdict::Inconclusive,
            format!("nothing is proven, because this was not observed: {}", fact.what),
        );
    }
    let accepted = load.accepted;
    (
        Verdict::Held,
        format!(
            "{accepted} orders accepted, none lost, none doubled, no effect without its order; {} of all orders are \
             confirmed, {} cancelled, and money and stock agree",
            audit.confirmed, audit.cancelled
        ),
    )
}
