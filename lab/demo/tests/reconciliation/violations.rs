//! Every finding of the reconciliation, planted once.

use anyhow::{Context as _, Result};
use demo::reconciliation::{DuplicatesDropped, Kind, PLACES};

use crate::records::{Records, about};

/// The statements that plant a violation (`records.rs` replaces the words in capitals), and the finding that is
/// expected.
#[rustfmt::skip]
const VIOLATIONS: [(&str, Kind, &str, &str); 55] = [
    (
        "COMPENSATED delete from orders.outbox where event_id = CANCELLATION",
        Kind::Missing,
        "orders",
        "cancelled order without its OrderCancelled event",
    ),
    (
        "delete from orders.outbox where event_id = CONFIRMATION",
        Kind::Missing,
        "orders",
        "confirmed order without its OrderConfirmed event",
    ),
    (
        "COMPENSATED update inventory.reservations set state = 'held', released_by = null, released_at = null where order_id = ORDER",
        Kind::Missing,
        "inventory",
        "OrderCancelled published, but the stock is not released",
    ),
    (
        "COMPENSATED update billing.payments set state = 'captured', cancelled_by = null, refund_id = null where order_id = ORDER",
        Kind::Missing,
        "billing",
        "OrderCancelled published, but the payment is not cancelled",
    ),
    (
        "delete from inventory.reservation_lines where reservation_id = RESERVATION; delete from inventory.reservations where id = RESERVATION",
        Kind::Missing,
        "inventory",
        "inventory never applied the order: no reservation exists",
    ),
    (
        "delete from billing.payments where order_id = ORDER",
        Kind::Missing,
        "billing",
        "billing never applied the order: no payment exists",
    ),
    (
        "delete from orders.answers where event_id = STOCK_EVENT",
        Kind::Missing,
        "inventory",
        "answer published, but the order service has not applied it",
    ),
    (
        "delete from orders.answers where event_id = PAYMENT_EVENT",
        Kind::Missing,
        "billing",
        "answer published, but the order service has not applied it",
    ),
    (
        "delete from orders.answers where order_id = ORDER; delete from orders.outbox where aggregate_id = ORDER; delete from orders.order_lines where order_id = ORDER; delete from orders.orders where id = ORDER",
        Kind::Missing,
        "orders",
        "acknowledged order does not exist",
    ),
    (
        "delete from orders.outbox where event_id = CREATED",
        Kind::Missing,
        "orders",
        "order without its OrderCreated event",
    ),
    (
        "COMPENSATED update inventory.cancelled_orders set came_first = true where order_id = ORDER",
        Kind::OutOfOrder,
        "inventory",
        "OrderCancelled applied before OrderCreated",
    ),
    (
        "COMPENSATED update billing.cancelled_orders set came_first = true where order_id = ORDER",
        Kind::OutOfOrder,
        "billing",
        "OrderCancelled applied before OrderCreated",
    ),
    (
        "insert into orders.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version, payload, lane) values (gen_random_uuid(), 'order', ORDER, 9, 'OrderCreated', 1, '{}', 0)",
        Kind::Doubled,
        "orders",
        "order with more than one OrderCreated event",
    ),
    (
        "insert into orders.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version, payload, lane) values (gen_random_uuid(), 'order', ORDER, 9, 'OrderConfirmed', 1, '{}', 0)",
        Kind::Doubled,
        "orders",
        "order confirmed more than once",
    ),
    (
        "insert into orders.answers (order_id, event_id, event_type, source, occurred_at) select order_id, event_id, event_type, source, occurred_at from orders.answers where event_id = STOCK_EVENT",
        Kind::Doubled,
        "orders",
        "answer applied more than once",
    ),
    (
        "insert into inventory.reservations (id, order_id, event_id, state) values (gen_random_uuid(), ORDER, CREATED, 'rejected')",
        Kind::Doubled,
        "inventory",
        "order with more than one reservation",
    ),
    (
        "insert into billing.payments (id, order_id, customer_id, amount, currency, event_id, traceparent, state) values (gen_random_uuid(), ORDER, ORDER, 2700, 'EUR', CREATED, '', 'declined')",
        Kind::Doubled,
        "billing",
        "order with more than one payment",
    ),
    (
        "insert into provider.charges (id, reference, customer_id, amount, currency, status) values (gen_random_uuid(), ORDER, ORDER, 2700, 'EUR', 'captured')",
        Kind::Doubled,
        "provider",
        "customer charged more than once",
    ),
    (
        "COMPENSATED insert into provider.refunds (id, charge_id, amount) values (gen_random_uuid(), CHARGE, 2700)",
        Kind::Doubled,
        "provider",
        "charge refunded more than once",
    ),
    (
        "delete from orders.answers where order_id = ORDER; delete from orders.order_lines where order_id = ORDER; delete from orders.orders where id = ORDER",
        Kind::Phantom,
        "orders",
        "OrderCreated event without its order",
    ),
    (
        "delete from orders.answers where order_id = ORDER; delete from orders.order_lines where order_id = ORDER; delete from orders.orders where id = ORDER",
        Kind::Phantom,
        "inventory",
        "reservation without its order",
    ),
    (
        "delete from orders.answers where order_id = ORDER; delete from orders.order_lines where order_id = ORDER; delete from orders.orders where id = ORDER",
        Kind::Phantom,
        "billing",
        "payment without its order",
    ),
    (
        "update orders.orders set status = 'paid', confirmed_at = null where id = ORDER",
        Kind::Phantom,
        "orders",
        "OrderConfirmed event of an order that is not confirmed",
    ),
    (
        "COMPENSATED update orders.orders set status = 'confirmed', cancelled_at = null, cancelled_for = null where id = ORDER",
        Kind::Phantom,
        "orders",
        "OrderCancelled event of an order that is not cancelled",
    ),
    (
        "delete from orders.answers where event_id = PAYMENT_EVENT",
        Kind::Phantom,
        "orders",
        "confirmed order without both answers",
    ),
    (
        "delete from inventory.outbox where event_id = STOCK_EVENT",
        Kind::Phantom,
        "orders",
        "answer whose event was never written",
    ),
    (
        "delete from orders.processed_events where event_id = STOCK_EVENT",
        Kind::Phantom,
        "orders",
        "answer whose event is not recorded as processed",
    ),
    (
        "update inventory.reservations set state = 'released', released_by = ORDER, released_at = now() where order_id = ORDER",
        Kind::Phantom,
        "inventory",
        "stock released without an OrderCancelled event",
    ),
    (
        "update inventory.reservations set event_id = gen_random_uuid() where order_id = ORDER",
        Kind::Phantom,
        "inventory",
        "reservation whose event was never written",
    ),
    (
        "delete from inventory.processed_events where event_id = CREATED",
        Kind::Phantom,
        "inventory",
        "reservation whose event is not recorded as processed",
    ),
    (
        "update billing.payments set cancelled_by = ORDER where order_id = ORDER",
        Kind::Phantom,
        "billing",
        "payment cancelled without an OrderCancelled event",
    ),
    (
        "update billing.payments set event_id = gen_random_uuid() where order_id = ORDER",
        Kind::Phantom,
        "billing",
        "payment whose event was never written",
    ),
    (
        "delete from billing.processed_events where event_id = CREATED",
        Kind::Phantom,
        "billing",
        "payment whose event is not recorded as processed",
    ),
    (
        "delete from billing.payments where order_id = ORDER",
        Kind::Phantom,
        "provider",
        "charge without a payment",
    ),
    (
        "update provider.charges set refunded = 1 where id = CHARGE",
        Kind::Phantom,
        "provider",
        "refund that billing did not request",
    ),
    (
        "update orders.orders set total_amount = 2701 where id = ORDER",
        Kind::WrongSum,
        "orders",
        "order total differs from the sum of its lines",
    ),
    (
        "update orders.orders set status = 'reserved', confirmed_at = null where id = ORDER",
        Kind::WrongSum,
        "orders",
        "order still open after its answers decided it",
    ),
    (
        "update inventory.reservation_lines set quantity = 3 where reservation_id = RESERVATION and line_number = 1",
        Kind::WrongSum,
        "inventory",
        "reserved line differs from the ordered line",
    ),
    (
        "update inventory.reservation_lines set sku = 'TEA-002' where reservation_id = RESERVATION and line_number = 1",
        Kind::WrongSum,
        "inventory",
        "reserved line differs from the ordered line",
    ),
    (
        "delete from inventory.reservation_lines where reservation_id = RESERVATION and line_number = 2",
        Kind::WrongSum,
        "inventory",
        "reserved line differs from the ordered line",
    ),
    (
        "delete from orders.order_lines where order_id = ORDER and line_number = 2",
        Kind::WrongSum,
        "inventory",
        "reserved line that was not ordered",
    ),
    (
        "update inventory.stock set reserved = reserved - 1 where sku = 'MUG-001'",
        Kind::WrongSum,
        "inventory",
        "reserved stock differs from the sum of its reservations",
    ),
    (
        "update inventory.reservations set state = 'rejected' where order_id = ORDER",
        Kind::WrongSum,
        "inventory",
        "reserved pieces differ from those of confirmed orders",
    ),
    (
        "update inventory.reservations set state = 'rejected' where order_id = ORDER",
        Kind::WrongSum,
        "inventory",
        "confirmed order without reserved stock",
    ),
    (
        "update billing.payments set amount = 1 where order_id = ORDER",
        Kind::WrongSum,
        "billing",
        "payment differs from the order total",
    ),
    (
        "update billing.payments set state = 'declined', charge_id = null where order_id = ORDER",
        Kind::WrongSum,
        "billing",
        "confirmed order without a captured payment",
    ),
    (
        "update billing.payments set state = 'declined', charge_id = null where order_id = ORDER",
        Kind::WrongSum,
        "provider",
        "charge that billing has recorded as declined or void",
    ),
    (
        "update provider.charges set amount = 1 where id = CHARGE",
        Kind::WrongSum,
        "provider",
        "charge in billing without its match at the provider",
    ),
    (
        "update provider.charges set amount = 1 where id = CHARGE",
        Kind::WrongSum,
        "provider",
        "charged minus refunded differs from the total of confirmed orders",
    ),
    (
        "COMPENSATED update provider.refunds set amount = 1 where charge_id = CHARGE",
        Kind::WrongSum,
        "provider",
        "refund in billing without its match at the provider",
    ),
    (
        "COMPENSATED update billing.payments set state = 'captured', refund_id = null where order_id = ORDER",
        Kind::Missing,
        "billing",
        "payment cancelled, but the charge is not refunded",
    ),
    (
        "delete from inventory.outbox where event_id = STOCK_EVENT",
        Kind::Missing,
        "inventory",
        "reservation without its event",
    ),
    (
        "COMPENSATED delete from inventory.outbox where event_id = RELEASE_EVENT",
        Kind::Missing,
        "inventory",
        "release without its event",
    ),
    (
        "delete from billing.outbox where event_id = PAYMENT_EVENT",
        Kind::Missing,
        "billing",
        "payment without its event",
    ),
    (
        "COMPENSATED delete from billing.outbox where event_id = REFUND_EVENT",
        Kind::Missing,
        "billing",
        "refund without its event",
    ),
];

#[tokio::test]
async fn every_planted_violation_is_found_and_named() -> Result<()> {
    let mut records = Records::new().await?;
    let (good, victim) = (records.order().await?, records.order().await?);
    for (planted, kind, place, what) in VIOLATIONS {
        let result = records.reconcile_after(victim, planted, &[good, victim]).await?;
        let found = result
            .findings
            .iter()
            .find(|found| (found.kind, &*found.place, &*found.what) == (kind, place, what));
        let found = found.with_context(|| format!("not found: {what}, in {:#?}", result.findings))?;
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
fn every_finding_of_the_query_is_planted() {
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
        assert!(VIOLATIONS.iter().any(|(.., planted)| *planted == what), "no test plants: {what}");
    }
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
const NEEDS_THE_EVENT: [&str; 15] = [
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

    // All violations of the young order are found, and those of the old one that do not need the event itself.
    for (victim, is_old) in [(young, false), (old, true)] {
        for (planted, kind, place, what) in VIOLATIONS {
            if is_old && NEEDS_THE_EVENT.contains(&what) {
                continue;
            }
            let result = records.reconcile_after(victim, planted, &[old, young]).await?;
            let found =
                |f: &&demo::reconciliation::Finding| (f.kind, &*f.place, &*f.what) == (kind, place, what);
            let found = result.findings.iter().find(found);
            found.with_context(|| format!("not found: {what} (old: {is_old}), in {:#?}", result.findings))?;
        }
    }
    Ok(())
}
