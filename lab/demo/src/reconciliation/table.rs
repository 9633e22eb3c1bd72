use serde::Serialize;

use super::result::{Kind, Reconciliation};

/// How many ids of a finding are printed.
const PRINTED_IDS: usize = 5;

/// How many duplicates each consumer has recognized and dropped. `None` means unknown, which is not zero.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct DuplicatesDropped {
    pub orders: Option<u64>,
    pub inventory: Option<u64>,
    pub billing: Option<u64>,
}

impl DuplicatesDropped {
    /// Those that are known, of all services.
    pub fn known(self) -> u64 {
        [self.orders, self.inventory, self.billing].into_iter().flatten().sum()
    }

    /// What was dropped since an earlier reading. A service that was restarted counts from zero again, so its number is
    /// unknown if it is smaller.
    #[must_use]
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

impl Reconciliation {
    /// The lines that are printed: the figures, the table, what was set aside, and the findings.
    pub fn table(&self, duplicates: DuplicatesDropped) -> Vec<String> {
        let mut lines = vec![
            format!(
                "  {} orders acknowledged; {} exist: {} confirmed, {} cancelled, {} open",
                self.acknowledged, self.orders, self.confirmed, self.cancelled, self.open
            ),
            format!(
                "  {} events ({} pending, {} parked); {} payments pending",
                self.events, self.pending, self.parked, self.payments_pending
            ),
            String::new(),
            row(
                "",
                "orders",
                ["missing", "doubled", "phantom", "wrong sums", "out of order", "duplicates dropped"],
            ),
            self.row("orders", self.orders, &number(duplicates.orders)),
            self.row("inventory", self.in_inventory, &number(duplicates.inventory)),
            self.row("billing", self.in_billing, &number(duplicates.billing)),
            self.row("provider", self.charges, "-"),
            String::new(),
            format!(
                "  money  charged {} - refunded {} = {}; confirmed orders cost {}",
                euros(self.charged),
                euros(self.refunded),
                euros(self.charged - self.refunded),
                euros(self.confirmed_total)
            ),
            format!(
                "  stock  {} pieces reserved; confirmed orders hold {}",
                self.reserved, self.confirmed_pieces
            ),
        ];
        lines.extend(self.set_aside.iter().map(|group| {
            let state = if group.discarded { "discarded by an operator" } else { "waiting for an operator" };
            let ids = ids(&group.first, group.count);
            format!("  SET ASIDE at {}: {state}: {} ({ids})", group.place, group.count)
        }));
        lines.extend(self.findings.iter().map(|found| {
            let ids = ids(&found.first, found.count);
            format!("  {} at {}: {}: {} ({ids})", label(found.kind), found.place, found.what, found.count)
        }));
        lines
    }

    fn row(&self, place: &str, orders: u64, dropped: &str) -> String {
        let kinds = [Kind::Missing, Kind::Doubled, Kind::Phantom, Kind::WrongSum, Kind::OutOfOrder];
        let [missing, doubled, phantom, sums, order] = kinds.map(|kind| self.count(kind, place).to_string());
        row(place, &orders.to_string(), [&missing, &doubled, &phantom, &sums, &order, dropped])
    }
}

fn row(place: &str, orders: &str, columns: [&str; 6]) -> String {
    let [missing, doubled, phantom, sums, order, dropped] = columns;
    format!("  {place:<10}{orders:>8}{missing:>9}{doubled:>9}{phantom:>9}{sums:>12}{order:>14}{dropped:>20}")
}

/// The first ids, and a sign that there are more.
fn ids(first: &[String], count: u64) -> String {
    let printed = &first[..first.len().min(PRINTED_IDS)];
    let more = if count > printed.len() as u64 { ", …" } else { "" };
    format!("{}{more}", printed.join(", "))
}

fn number(known: Option<u64>) -> String {
    known.map_or("?".to_owned(), |number| number.to_string())
}

fn euros(cents: i64) -> String {
    format!("{}.{:02} EUR", cents / 100, cents.abs() % 100)
}

fn label(kind: Kind) -> &'static str {
    match kind {
        Kind::Missing => "MISSING",
        Kind::Doubled => "DOUBLED",
        Kind::Phantom => "PHANTOM",
        Kind::WrongSum => "WRONG SUM",
        Kind::OutOfOrder => "OUT OF ORDER",
    }
}
