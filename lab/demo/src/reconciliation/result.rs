use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// The result of the query.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reconciliation {
    /// Distinct orders that were acknowledged to a client of ours.
    pub acknowledged: u64,
    /// Orders that exist: also other clients' orders, and those whose acknowledgement did not arrive.
    pub orders: u64,
    /// Confirmed orders.
    pub confirmed: u64,
    /// Cancelled orders.
    pub cancelled: u64,
    /// Orders that wait for an answer. Those with an event that was set aside or discarded are not counted: they do not
    /// go on by themselves.
    pub open: u64,
    /// Events of all services, published or not.
    pub events: u64,
    /// Events that are still to be published. Their effects are not missing yet.
    pub pending: u64,
    /// Payments for which billing must still call the payment provider, for a charge or for a refund.
    pub payments_pending: u64,
    /// Events that are parked.
    pub parked: u64,
    /// Parked events and dead letters, by service, and how many of them were discarded. Their effects are not
    /// missing.
    pub set_aside: Vec<SetAside>,
    /// Distinct orders that inventory has reserved stock for, or rejected.
    pub in_inventory: u64,
    /// Distinct orders that billing has a payment for.
    pub in_billing: u64,
    /// Distinct orders that the payment provider has charged.
    pub charges: u64,
    /// What the provider has charged, in minor units.
    pub charged: i64,
    /// What the provider has refunded.
    pub refunded: i64,
    /// The total of all confirmed orders. In a quiescent system it is `charged - refunded`.
    pub confirmed_total: i64,
    /// Pieces that are reserved.
    pub reserved: i64,
    /// Pieces of the confirmed orders. In a quiescent system they are `reserved`.
    pub confirmed_pieces: i64,
    /// How many distinct orders (or SKUs) have findings of a kind, at whichever places.
    pub affected: BTreeMap<Kind, u64>,
    /// Everything that is wrong.
    pub findings: Vec<Finding>,
}

/// What is wrong with so many orders.
fn in_words(kind: Kind, count: u64, mut what: Vec<&str>) -> String {
    let (order, sum) = if count == 1 { ("order", "sum") } else { ("orders", "sums") };
    let counted = match kind {
        Kind::Missing => format!("{count} {order} missing"),
        Kind::Doubled => format!("{count} {order} doubled"),
        Kind::Phantom => format!("{count} phantom {order}"),
        Kind::WrongSum => format!("{count} wrong {sum}"),
        Kind::OutOfOrder => format!("{count} {order} out of order"),
    };
    what.dedup();
    let more = what.len().saturating_sub(NAMED);
    what.truncate(NAMED);
    let more = if more == 0 { String::new() } else { format!("; and {more} more") };
    format!("{counted} ({}{more})", what.join("; "))
}

/// How many findings of a kind a verdict names.
const NAMED: usize = 2;

/// Whose records are compared.
pub const PLACES: [&str; 4] = ["orders", "inventory", "billing", "provider"];

/// What was set aside at one service: parked events and dead letters.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct SetAside {
    /// `orders`, `inventory` or `billing`.
    pub place: String,
    /// Whether an operator has discarded these. Otherwise they wait for one.
    pub discarded: bool,
    pub count: u64,
    /// The first five ids, as `demo failed` accepts them.
    pub first: Vec<String>,
}

/// One way in which the records contradict each other or the acknowledgements.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Finding {
    pub kind: Kind,
    /// Whose records are wrong: one of [`PLACES`].
    pub place: String,
    /// What is wrong, in words.
    pub what: String,
    /// For how many distinct orders (or SKUs).
    pub count: u64,
    /// The ids of the first ten thousand.
    pub first: Vec<String>,
}

/// The kinds of findings.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A record that must exist does not.
    Missing,
    /// It exists more than once.
    Doubled,
    /// It exists without a cause.
    Phantom,
    /// It exists with a wrong amount, or the sums do not agree.
    WrongSum,
    /// It was applied or published out of order.
    OutOfOrder,
}

impl Finding {
    /// Whether this may be an effect that has not arrived yet: its event exists.
    pub fn may_arrive(&self) -> bool {
        self.kind == Kind::Missing && self.place != "orders"
    }

    /// The invariant of `docs/guarantees.md` that it breaks.
    pub fn invariant(&self) -> &'static str {
        match (self.kind, self.place.as_str()) {
            (Kind::Missing, "orders") if self.what.starts_with("acknowledged") => "I1",
            (Kind::Missing, "orders") => "I2",
            (Kind::Missing, _) => "I3",
            (Kind::Doubled | Kind::WrongSum, _) => "I4",
            (Kind::Phantom, _) => "I5",
            (Kind::OutOfOrder, _) => "I6",
        }
    }
}

impl Reconciliation {
    /// Reads the one value that the query returns.
    pub fn parse(json: &str) -> Result<Self> {
        serde_json::from_str(json).context("failed to read the result of the reconciliation")
    }

    /// Counts the findings of a kind at a place, by distinct ids of each.
    pub fn count(&self, kind: Kind, place: &str) -> u64 {
        let matching = self.findings.iter().filter(|found| found.kind == kind && found.place == place);
        matching.map(|found| found.count).sum()
    }

    /// The broken promises in words, for a verdict: how many orders, each counted once, and what is wrong with them. `None`
    /// if the records agree.
    pub fn broken(&self) -> Option<String> {
        self.broken_by(|_| true)
    }

    /// The same without the effects that may still arrive.
    pub fn broken_for_good(&self) -> Option<String> {
        self.broken_by(|found| !found.may_arrive())
    }

    fn broken_by(&self, counts: impl Fn(&Finding) -> bool) -> Option<String> {
        let kinds = self.affected.iter().filter_map(|(kind, affected)| {
            let all = self.findings.iter().filter(|found| found.kind == *kind);
            let (counted, others): (Vec<_>, Vec<_>) = all.partition(|found| counts(found));
            // Distinct orders are known of all findings of a kind only.
            let most = counted.iter().map(|found| found.count).max()?;
            let orders = if others.is_empty() { *affected } else { most };
            Some(in_words(*kind, orders, counted.iter().map(|found| &*found.what).collect()))
        });
        let kinds: Vec<_> = kinds.collect();
        (!kinds.is_empty()).then(|| kinds.join(", "))
    }

    /// Counts the findings of a kind at all places.
    pub fn count_everywhere(&self, kind: Kind) -> u64 {
        PLACES.map(|place| self.count(kind, place)).iter().sum()
    }

    /// How many events, payments and orders are not done yet.
    pub fn in_progress(&self) -> u64 {
        self.pending + self.payments_pending + self.open
    }

    /// The same in words.
    pub fn progress(&self) -> String {
        let Self { pending, payments_pending, open, .. } = self;
        format!("{pending} events pending, {payments_pending} payments pending, {open} orders open")
    }

    /// How many parked events and dead letters wait for an operator.
    pub fn waiting_for_operator(&self) -> u64 {
        self.set_aside.iter().filter(|group| !group.discarded).map(|group| group.count).sum()
    }

    /// How many parked events and dead letters an operator has discarded.
    pub fn discarded(&self) -> u64 {
        self.set_aside.iter().filter(|group| group.discarded).map(|group| group.count).sum()
    }

    /// Whether nothing is in progress, and no effect may still arrive.
    pub fn is_quiescent(&self) -> bool {
        self.in_progress() == 0 && self.count_everywhere(Kind::Missing) == 0
    }

    /// Whether something is wrong that no wait can repair: an order or an event is missing, or something exists that
    /// must not exist.
    pub fn is_violated(&self) -> bool {
        self.findings.iter().any(|found| !found.may_arrive())
    }
}
