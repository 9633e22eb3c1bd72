//! The conservation sum: nothing lost, nothing doubled, nothing from nowhere.

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The query, with the acknowledged ids in their place.
pub fn query(acknowledged: &[Uuid]) -> String {
    // Part of the text rather than a parameter, because with containers it goes through `psql`. Nothing but
    // hexadecimal digits and dashes can come out of a `Uuid`.
    let ids: Vec<String> = acknowledged.iter().map(Uuid::to_string).collect();
    include_str!("audit.sql").replacen("ACCEPTED", &format!("'{{{}}}'::uuid[]", ids.join(",")), 1)
}

/// What the three services hold, in one snapshot, against what was acknowledged.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Audit {
    /// Distinct order ids that a client of ours holds an acknowledgement for.
    pub acknowledged: u64,
    /// Orders that exist: also those of other clients, and those whose acknowledgement got lost on its way.
    pub orders: u64,
    /// Events in the outbox, published or not.
    pub events: u64,
    /// Of these, cancellations.
    pub cancelled: u64,
    /// Of these, still to be published. Their effects are not missing: they are on their way.
    pub owed: u64,
    /// Of these, set aside for an operator.
    pub parked: u64,
    /// What was set aside at each place, and what an operator gave up: neither is missing.
    pub aside: Vec<Aside>,
    /// Order lines that exist.
    pub lines: u64,
    /// Distinct order lines with a reservation.
    pub lines_reserved: u64,
    /// Distinct orders with a reservation.
    pub orders_reserved: u64,
    /// Distinct orders with an invoice.
    pub orders_invoiced: u64,
    /// Everything that is wrong; empty when the sum holds.
    pub findings: Vec<Finding>,
}

/// How many duplicates each consumer recognised and dropped; `None` where nobody knows, which is not zero.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Dropped {
    /// By inventory.
    pub inventory: Option<u64>,
    /// By billing.
    pub billing: Option<u64>,
}

impl Dropped {
    /// What was dropped since an earlier look. A service that was started again counts from zero: then nobody knows.
    pub fn since(self, before: Self) -> Self {
        let since =
            |now: Option<u64>, before: Option<u64>| now.zip(before).and_then(|(n, b)| n.checked_sub(b));
        Self {
            inventory: since(self.inventory, before.inventory),
            billing: since(self.billing, before.billing),
        }
    }
}

/// What was set aside at one place.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Aside {
    /// `orders` (parked events), `inventory` or `billing` (dead letters).
    pub place: String,
    /// Given up, and not waiting any more.
    pub discarded: bool,
    /// How many.
    pub count: u64,
    /// The first of them, as `demo aside` takes them.
    pub first: Vec<String>,
}

/// One way in which the sum does not hold.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Finding {
    /// Which promise it breaks.
    pub kind: Kind,
    /// In whose tables: `orders`, `inventory` or `billing`.
    pub place: String,
    /// What is wrong, in words.
    pub what: String,
    /// How many distinct orders (or SKUs) it is wrong for.
    pub count: u64,
    /// The first of them.
    pub first: Vec<String>,
}

/// The ways to be wrong.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Promised, and not there.
    Missing,
    /// There more than once.
    Doubled,
    /// There without a cause.
    Phantom,
    /// There, with the wrong amount.
    Sums,
    /// Applied or published in another order than it happened in.
    Disorder,
}

impl Audit {
    /// Reads the query's one value.
    pub fn parse(json: &str) -> Result<Self> {
        serde_json::from_str(json).context("the conservation query answered something unexpected")
    }

    /// How many are wrong in this way at this place.
    pub fn count(&self, kind: Kind, place: &str) -> u64 {
        self.findings
            .iter()
            .filter(|found| found.kind == kind && found.place == place)
            .map(|found| found.count)
            .sum()
    }

    /// How much waits for an operator, or with `discarded`, how much was given up.
    pub fn set_aside(&self, discarded: bool) -> u64 {
        self.aside.iter().filter(|aside| aside.discarded == discarded).map(|aside| aside.count).sum()
    }

    /// Whether nothing is on its way any more: what is not there now will not come.
    pub fn at_rest(&self) -> bool {
        self.owed == 0 && !self.findings.iter().any(|found| found.kind == Kind::Missing)
    }

    /// Whether something is wrong that no waiting will mend: an order or an event that is not there, or something
    /// that is there too often or too much.
    pub fn beyond_hope(&self) -> bool {
        self.findings.iter().any(|found| found.kind != Kind::Missing || found.place == "orders")
    }

    /// The table that people read.
    pub fn table(&self, duplicates: Dropped) -> Vec<String> {
        let number = |n: Option<u64>| n.map_or("?".to_owned(), |n| n.to_string());
        let row = |place: &str, holds: u64, dropped: Option<String>| {
            let counts = [Kind::Missing, Kind::Doubled, Kind::Phantom, Kind::Sums, Kind::Disorder]
                .map(|kind| self.count(kind, place));
            let [missing, doubled, phantom, sums, disorder] = counts;
            let dropped = dropped.unwrap_or_else(|| "-".to_owned());
            format!(
                "  {place:<10}{holds:>8}{missing:>9}{doubled:>9}{phantom:>9}{sums:>12}{disorder:>14}{dropped:>20}"
            )
        };
        let mut lines = vec![
            format!(
                "  {} orders acknowledged to us; {} exist, with {} events ({} still to be published, {} set aside)",
                self.acknowledged, self.orders, self.events, self.owed, self.parked
            ),
            String::new(),
            format!(
                "  {:<10}{:>8}{:>9}{:>9}{:>9}{:>12}{:>14}{:>20}",
                "",
                "orders",
                "missing",
                "doubled",
                "phantom",
                "wrong sums",
                "out of order",
                "duplicates dropped"
            ),
            row("orders", self.orders, None),
            row("inventory", self.orders_reserved, Some(number(duplicates.inventory))),
            row("billing", self.orders_invoiced, Some(number(duplicates.billing))),
        ];
        for aside in &self.aside {
            let more = if aside.count > aside.first.len() as u64 { ", …" } else { "" };
            let what = if aside.discarded {
                "discarded by an operator"
            } else {
                "set aside, waiting for an operator"
            };
            lines.push(format!(
                "  ASIDE at {}: {what}: {} ({}{more})",
                aside.place,
                aside.count,
                aside.first.join(", ")
            ));
        }
        for found in &self.findings {
            let more = if found.count > found.first.len() as u64 { ", …" } else { "" };
            let ids = found.first.join(", ");
            lines.push(format!(
                "  {} at {}: {}: {} ({ids}{more})",
                label(found.kind),
                found.place,
                found.what,
                found.count
            ));
        }
        lines
    }
}

fn label(kind: Kind) -> &'static str {
    match kind {
        Kind::Missing => "MISSING",
        Kind::Doubled => "DOUBLED",
        Kind::Phantom => "PHANTOM",
        Kind::Sums => "WRONG SUM",
        Kind::Disorder => "OUT OF ORDER",
    }
}
