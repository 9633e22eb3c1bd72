//! Every finding of the reconciliation, planted once.

use anyhow::{Context as _, Result};
use demo::reconciliation::{DuplicatesDropped, Finding, Kind, PLACES, Reconciliation};

use crate::records::{Records, about};

const VIOLATIONS: &str = include_str!("violations.sql");

/// A finding, and the statements that plant it.
struct Violation {
    kind: Kind,
    place: &'static str,
    what: &'static str,
    planted: &'static str,
}

impl Violation {
    fn found_in<'a>(&self, result: &'a Reconciliation) -> Result<&'a Finding> {
        let Self { kind, place, what, .. } = self;
        let found = |found: &&Finding| (found.kind, &*found.place, &*found.what) == (*kind, *place, *what);
        let found = result.findings.iter().find(found);
        found.with_context(|| format!("not found: {what}, in {:#?}", result.findings))
    }
}

fn violations() -> Result<Vec<Violation>> {
    let read = |block: &'static str| {
        let (finding, planted) = block.strip_prefix("-- ")?.split_once('\n')?;
        let (kind, rest) = finding.split_once(" at ")?;
        let (place, what) = rest.split_once(": ")?;
        Some(Violation { kind: serde_json::from_value(kind.into()).ok()?, place, what, planted })
    };
    let blocks = VIOLATIONS.split("\n\n").skip(1);
    blocks.map(|block| read(block).with_context(|| format!("failed to read the violation {block}"))).collect()
}

#[tokio::test]
async fn every_planted_violation_is_found_and_named() -> Result<()> {
    let mut records = Records::new().await?;
    let (good, victim) = (records.order().await?, records.order().await?);
    for violation in violations()? {
        let result = records.reconcile_after(victim, violation.planted, &[good, victim]).await?;
        let (found, Violation { kind, what, .. }) = (violation.found_in(&result)?, violation);
        assert_eq!(found.count, 1, "{what}: {:?}", result.findings);
        let named = [victim.to_string(), "MUG-001".into(), "all orders".into()];
        assert!(named.contains(&found.first[0]), "{found:?}");
        assert!(!result.is_quiescent() || kind != Kind::Missing, "{what}: quiescent");
        let of_kind = result.findings.iter().filter(|found| found.kind == kind).map(|found| found.count);
        assert!((1..=of_kind.sum()).contains(&result.affected[&kind]), "{:?}", result.affected);
        let table = result.table(DuplicatesDropped::default()).join("\n");
        assert!(table.contains(what) && table.contains(&found.first[0]), "{table}");
    }
    let result = records.reconcile(&[good, victim]).await?;
    assert!(result.findings.is_empty(), "a violation was not rolled back: {result:?}");
    Ok(())
}

#[test]
fn every_finding_of_the_query_is_planted() -> Result<()> {
    let planted = violations()?;
    let query = include_str!("../../src/reconciliation/reconciliation.sql");
    let kinds = ["missing", "out-of-order", "doubled", "phantom", "wrong-sum"];
    let mut found: Vec<&str> = vec![];
    for line in query.lines().filter(|line| line.trim().starts_with("select '")) {
        let quoted: Vec<_> = line.split('\'').skip(1).step_by(2).collect();
        // In one of them the place is a column and not a word.
        let place_is_a_word = quoted.len() > 2 && PLACES.contains(&quoted[1]);
        if kinds.contains(&quoted[0]) {
            found.extend(quoted.get(if place_is_a_word { 2 } else { 1 }).copied());
        }
    }
    assert!(found.len() > 40, "the query was not parsed: {found:?}");
    for what in found {
        assert!(planted.iter().any(|violation| violation.what == what), "no test plants: {what}");
    }
    Ok(())
}

/// An order whose events, and the records of them, retention has erased.
const RETENTION: &str = "
    update orders.orders set placed_at = now() - interval '40 days', confirmed_at = now() - interval '40 days'
        where id = ORDER;
    update orders.answers set occurred_at = now() - interval '40 days', applied_at = now() - interval '40 days'
        where order_id = ORDER;
    update inventory.reservations set decided_at = now() - interval '40 days' where order_id = ORDER;
    update billing.payments set asked_at = now() - interval '40 days', answered_at = now() - interval '40 days'
        where order_id = ORDER;
    delete from orders.processed_events where event_id in (STOCK_EVENT, PAYMENT_EVENT);
    delete from inventory.processed_events where event_id = CREATED;
    delete from billing.processed_events where event_id = CREATED;
    delete from orders.outbox where aggregate_id = ORDER;
    delete from inventory.outbox where aggregate_id = RESERVATION;
    delete from billing.outbox where aggregate_id = PAYMENT;
    update orders.outbox_retention set erased_before = now() - interval '7 days';
    update inventory.outbox_retention set erased_before = now() - interval '7 days';
    update billing.outbox_retention set erased_before = now() - interval '7 days';
    insert into orders.inbox_retention values ('orders', now() - interval '30 days');
    insert into inventory.inbox_retention values ('inventory', now() - interval '30 days');
    insert into billing.inbox_retention values ('billing', now() - interval '30 days')";

/// What cannot be found without the event itself.
const NEEDS_THE_EVENT: [&str; 16] = [
    "an event applied before an older one of its aggregate",
    "reservation without its event",
    "payment without its event",
    "order without its OrderCreated event",
    "confirmed order without its OrderConfirmed event",
    "order with more than one OrderCreated event",
    "order confirmed more than once",
    "OrderCreated event without its order",
    "OrderConfirmed event of an order that is not confirmed",
    "reservation whose event was never written",
    "reservation whose event is not recorded as processed",
    "payment whose event was never written",
    "payment whose event is not recorded as processed",
    "answer whose event was never written",
    "answer whose event is not recorded as processed",
    "answer published, but the order service has not applied it",
];

#[tokio::test]
async fn erased_events_are_not_missing_and_other_violations_are_still_found() -> Result<()> {
    let mut records = Records::new().await?;
    let (old, young) = (records.order().await?, records.order().await?);
    records.run(&about(old, RETENTION)).await?;
    let result = records.reconcile(&[old, young]).await?;
    assert!(result.findings.is_empty() && result.is_quiescent(), "{result:?}");

    // What of the old order does not need the event itself is found.
    for violation in violations()? {
        if !NEEDS_THE_EVENT.contains(&violation.what) {
            let result = records.reconcile_after(old, violation.planted, &[old, young]).await?;
            violation.found_in(&result)?;
        }
    }
    Ok(())
}
