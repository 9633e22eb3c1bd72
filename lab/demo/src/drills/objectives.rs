//! The recovery of a fail-over as one line: how long nothing moved, what was lost, what came twice, and what should not exist.

use std::time::Duration;

use crate::reconciliation::{DuplicatesDropped, Kind, Reconciliation};

/// The line. `recovery` is the time that the drill has measured; the rest comes from the records.
///
/// An order is lost if it was acknowledged to a client and does not exist, or has no event. A phantom is an order with an event or
/// an effect without a cause; it counts once, as in the verdict.
pub(super) fn line(
    recovery: Duration,
    reconciliation: &Reconciliation,
    duplicates: DuplicatesDropped,
) -> String {
    let lost = reconciliation.count(Kind::Missing, "orders");
    let DuplicatesDropped { orders, inventory, billing } = duplicates;
    let all_known = [orders, inventory, billing].iter().all(Option::is_some);
    format!(
        "RTO {:.1} s · RPO {} of {} acknowledged · {}{} duplicates dropped · {} phantom",
        recovery.as_secs_f64(),
        grouped(lost),
        grouped(reconciliation.acknowledged),
        if all_known { "" } else { "at least " },
        grouped(duplicates.known()),
        grouped(reconciliation.affected.get(&Kind::Phantom).copied().unwrap_or_default()),
    )
}

/// A number with a comma after each thousand.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::reconciliation::Finding;

    #[test]
    fn line_counts_lost_orders_duplicates_and_phantoms() {
        let finding = |kind, place: &str, count| {
            let (place, what) = (place.to_owned(), String::new());
            Finding { kind, place, what, count, first: vec![] }
        };
        let findings = vec![
            finding(Kind::Missing, "orders", 3),
            // An effect that is missing is no lost order.
            finding(Kind::Missing, "billing", 5),
            // Of the same two orders.
            finding(Kind::Phantom, "inventory", 2),
            finding(Kind::Phantom, "billing", 2),
        ];
        let affected = BTreeMap::from([(Kind::Missing, 8), (Kind::Phantom, 2)]);
        let reconciliation =
            Reconciliation { acknowledged: 1_004_112, affected, findings, ..Default::default() };
        let known = DuplicatesDropped { orders: Some(1), inventory: Some(30), billing: Some(6) };
        let recovery = Duration::from_millis(3_412);
        assert_eq!(
            line(recovery, &reconciliation, known),
            "RTO 3.4 s · RPO 3 of 1,004,112 acknowledged · 37 duplicates dropped · 2 phantom"
        );
        let unknown = DuplicatesDropped { billing: None, ..known };
        assert!(line(recovery, &reconciliation, unknown).contains("· at least 31 duplicates dropped ·"));
    }
}
