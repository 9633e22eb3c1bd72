//! The conservation sum: nothing lost, nothing doubled, nothing from nowhere.

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::variant::Variant;

/// How many ids of a finding people are shown.
const SHOWN: usize = 5;

/// The query, with the acknowledged ids in their place. A variant without an outbox is believed to have published each order
/// when it was placed.
pub fn query(acknowledged: &[Uuid], variant: Option<Variant>) -> String {
    let unwritten = variant.is_some_and(|variant| !variant.keeps_outbox());
    // Part of the text rather than a parameter, because with containers it goes through `psql`. Nothing but
    // hexadecimal digits and dashes can come out of a `Uuid`.
    let ids: Vec<String> = acknowledged.iter().map(Uuid::to_string).collect();
    include_str!("audit.sql").replacen("ACCEPTED", &format!("'{{{}}}'::uuid[]", ids.join(",")), 1).replacen(
        "UNWRITTEN",
        &unwritten.to_string(),
        1,
    )
}

/// What the three services hold, in one snapshot, against what was acknowledged.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Audit {
    /// Distinct order ids that a client of ours holds an acknowledgement for.
    pub acknowledged: u64,
    /// Orders that exist: also those of other clients, and those whose acknowledgement got lost on its way.
    pub orders: u64,
    /// Of these, confirmed.
    pub confirmed: u64,
    /// Of these, cancelled.
    pub cancelled: u64,
    /// Of these, still to be answered, unless one of their events was set aside: those do not go on by themselves.
    pub open: u64,
    /// Events in the outboxes of all services, published or not.
    pub events: u64,
    /// Of these, still to be published. Their effects are not missing: they are on their way.
    pub owed: u64,
    /// Payments that the provider is still to be asked for, or to give back.
    pub payments_owed: u64,
    /// Events set aside for an operator.
    pub parked: u64,
    /// What was set aside at each place, and what an operator gave up: neither is missing.
    pub aside: Vec<Aside>,
    /// Distinct orders that inventory has answered.
    pub in_inventory: u64,
    /// Distinct orders that billing has a payment for.
    pub in_billing: u64,
    /// Distinct orders that the payment provider has charged.
    pub charges: u64,
    /// What it has charged, in minor units.
    pub charged: i64,
    /// What it has given back.
    pub refunded: i64,
    /// What all confirmed orders cost. At rest the three agree.
    pub confirmed_total: i64,
    /// Pieces that are put aside.
    pub put_aside: i64,
    /// Pieces that confirmed orders ask for. At rest the two agree.
    pub confirmed_pieces: i64,
    /// Everything that is wrong; empty when the sum holds.
    pub findings: Vec<Finding>,
}

/// Whose books are compared.
pub const PLACES: [&str; 4] = ["orders", "inventory", "billing", "provider"];

/// How many duplicates each consumer recognised and dropped; `None` where nobody knows, which is not zero.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Dropped {
    /// By orders.
    pub orders: Option<u64>,
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
            orders: since(self.orders, before.orders),
            inventory: since(self.inventory, before.inventory),
            billing: since(self.billing, before.billing),
        }
    }
}

/// What was set aside at one place.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Aside {
    /// Whose outbox (parked events) or whose queue (dead letters): `orders`, `inventory` or `billing`.
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
    /// In whose books: one of [`PLACES`].
    pub place: String,
    /// What is wrong, in words.
    pub what: String,
    /// How many distinct orders (or SKUs) it is wrong for.
    pub count: u64,
    /// The first ten thousand of them.
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

impl Finding {
    /// Whether it may be on its way: an effect that is missing so far, of an event that is there.
    pub fn may_pass(&self) -> bool {
        self.kind == Kind::Missing && self.place != "orders"
    }
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

    /// How many are wrong in this way anywhere.
    pub fn count_all(&self, kind: Kind) -> u64 {
        PLACES.map(|place| self.count(kind, place)).iter().sum()
    }

    /// What is still to be published, asked of the provider, or answered.
    pub fn under_way(&self) -> u64 {
        self.owed + self.payments_owed + self.open
    }

    /// How much waits for an operator, or with `discarded`, how much was given up.
    pub fn set_aside(&self, discarded: bool) -> u64 {
        self.aside.iter().filter(|aside| aside.discarded == discarded).map(|aside| aside.count).sum()
    }

    /// Whether nothing is on its way any more: what is not there now will not come.
    pub fn at_rest(&self) -> bool {
        self.under_way() == 0 && !self.findings.iter().any(|found| found.kind == Kind::Missing)
    }

    /// Whether something is wrong that no waiting will mend: an order or an event that is not there, or something
    /// that is there too often or too much.
    pub fn beyond_hope(&self) -> bool {
        self.findings.iter().any(|found| !found.may_pass())
    }

    /// The table that people read.
    pub fn table(&self, duplicates: Dropped) -> Vec<String> {
        let number = |n: Option<u64>| n.map_or("?".to_owned(), |n| n.to_string());
        let row = |place: &str, holds: u64, dropped: String| {
            let counts = [Kind::Missing, Kind::Doubled, Kind::Phantom, Kind::Sums, Kind::Disorder]
                .map(|kind| self.count(kind, place));
            let [missing, doubled, phantom, sums, disorder] = counts;
            format!(
                "  {place:<10}{holds:>8}{missing:>9}{doubled:>9}{phantom:>9}{sums:>12}{disorder:>14}{dropped:>20}"
            )
        };
        let euros = |cents: i64| format!("{}.{:02} EUR", cents / 100, cents.abs() % 100);
        let mut lines = vec![
            format!(
                "  {} orders acknowledged to us; {} exist: {} confirmed, {} cancelled, {} open",
                self.acknowledged, self.orders, self.confirmed, self.cancelled, self.open
            ),
            format!(
                "  {} events ({} still to be published, {} set aside); {} payments still owed to or by the provider",
                self.events, self.owed, self.parked, self.payments_owed
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
            row("orders", self.orders, number(duplicates.orders)),
            row("inventory", self.in_inventory, number(duplicates.inventory)),
            row("billing", self.in_billing, number(duplicates.billing)),
            row("provider", self.charges, "-".to_owned()),
            String::new(),
            format!(
                "  money  charged {} - refunded {} = {}; confirmed orders cost {}",
                euros(self.charged),
                euros(self.refunded),
                euros(self.charged - self.refunded),
                euros(self.confirmed_total)
            ),
            format!(
                "  stock  {} pieces put aside; confirmed orders hold {}",
                self.put_aside, self.confirmed_pieces
            ),
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
            let shown = &found.first[..found.first.len().min(SHOWN)];
            let more = if found.count > shown.len() as u64 { ", …" } else { "" };
            let ids = shown.join(", ");
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
