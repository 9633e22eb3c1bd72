//! Every finding of the conservation sum, brought about once.

use anyhow::{Context as _, Result};
use demo::audit::{Dropped, Kind, PLACES};

use crate::books::{Books, about};

/// What is planted (words in capitals stand for the victim's ids and for statements, see `books.rs`), and what has to be
/// found.
#[rustfmt::skip]
const WRONGS: [(&str, Kind, &str, &str); 55] = [
    (
        "CANCELLED delete from orders.outbox where event_id = CANCELLATION",
        Kind::Missing,
        "orders",
        "cancelled order without its event",
    ),
    (
        "delete from orders.outbox where event_id = CONFIRMATION",
        Kind::Missing,
        "orders",
        "confirmed order without its event",
    ),
    (
        "CANCELLED update inventory.reservations set state = 'held', released_by = null, released_at = null where order_id = ORDER",
        Kind::Missing,
        "inventory",
        "cancellation published, but the stock is not released",
    ),
    (
        "CANCELLED update billing.payments set state = 'captured', cancelled_by = null, refund_id = null where order_id = ORDER",
        Kind::Missing,
        "billing",
        "cancellation published, but the payment is not taken back",
    ),
    (
        "delete from inventory.reservation_lines where reservation_id = RESERVATION; delete from inventory.reservations where id = RESERVATION",
        Kind::Missing,
        "inventory",
        "published, but the order is not answered",
    ),
    (
        "delete from billing.payments where order_id = ORDER",
        Kind::Missing,
        "billing",
        "published, but there is no payment",
    ),
    (
        "delete from orders.answers where event_id = STOCK_EVENT",
        Kind::Missing,
        "inventory",
        "answered, but the order has not heard of it",
    ),
    (
        "delete from orders.answers where event_id = PAYMENT_EVENT",
        Kind::Missing,
        "billing",
        "answered, but the order has not heard of it",
    ),
    (
        "delete from orders.answers where order_id = ORDER; delete from orders.outbox where aggregate_id = ORDER; delete from orders.order_lines where order_id = ORDER; delete from orders.orders where id = ORDER",
        Kind::Missing,
        "orders",
        "acknowledged, but there is no such order",
    ),
    (
        "delete from orders.outbox where event_id = CREATED",
        Kind::Missing,
        "orders",
        "order without its event",
    ),
    (
        "CANCELLED update inventory.cancelled_orders set came_first = true where order_id = ORDER",
        Kind::Disorder,
        "inventory",
        "cancelled before it was created",
    ),
    (
        "CANCELLED update billing.cancelled_orders set came_first = true where order_id = ORDER",
        Kind::Disorder,
        "billing",
        "cancelled before it was created",
    ),
    (
        "insert into orders.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version, payload, lane) values (gen_random_uuid(), 'order', ORDER, 9, 'OrderCreated', 1, '{}', 0)",
        Kind::Doubled,
        "orders",
        "order with two creation events",
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
        "answer taken more than once",
    ),
    (
        "insert into inventory.reservations (id, order_id, event_id, state) values (gen_random_uuid(), ORDER, CREATED, 'rejected')",
        Kind::Doubled,
        "inventory",
        "order answered more than once",
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
        "CANCELLED insert into provider.refunds (id, charge_id, amount) values (gen_random_uuid(), CHARGE, 2700)",
        Kind::Doubled,
        "provider",
        "charge refunded more than once",
    ),
    (
        "delete from orders.answers where order_id = ORDER; delete from orders.order_lines where order_id = ORDER; delete from orders.orders where id = ORDER",
        Kind::Phantom,
        "orders",
        "event without its order",
    ),
    (
        "delete from orders.answers where order_id = ORDER; delete from orders.order_lines where order_id = ORDER; delete from orders.orders where id = ORDER",
        Kind::Phantom,
        "inventory",
        "reservation without such an order",
    ),
    (
        "delete from orders.answers where order_id = ORDER; delete from orders.order_lines where order_id = ORDER; delete from orders.orders where id = ORDER",
        Kind::Phantom,
        "billing",
        "payment without such an order",
    ),
    (
        "update orders.orders set status = 'paid', confirmed_at = null where id = ORDER",
        Kind::Phantom,
        "orders",
        "confirmation of an order that is not confirmed",
    ),
    (
        "CANCELLED update orders.orders set status = 'confirmed', cancelled_at = null, cancelled_for = null where id = ORDER",
        Kind::Phantom,
        "orders",
        "cancellation of an order that is not cancelled",
    ),
    (
        "delete from orders.answers where event_id = PAYMENT_EVENT",
        Kind::Phantom,
        "orders",
        "confirmed without both answers",
    ),
    (
        "delete from inventory.outbox where event_id = STOCK_EVENT",
        Kind::Phantom,
        "orders",
        "answer that nobody gave",
    ),
    (
        "delete from orders.processed_events where event_id = STOCK_EVENT",
        Kind::Phantom,
        "orders",
        "answer without a record of its event",
    ),
    (
        "update inventory.reservations set state = 'released', released_by = ORDER, released_at = now() where order_id = ORDER",
        Kind::Phantom,
        "inventory",
        "stock released without a cancellation",
    ),
    (
        "update inventory.reservations set event_id = gen_random_uuid() where order_id = ORDER",
        Kind::Phantom,
        "inventory",
        "reservation by an event that was never written",
    ),
    (
        "delete from inventory.processed_events where event_id = CREATED",
        Kind::Phantom,
        "inventory",
        "reservation without a record of its event",
    ),
    (
        "update billing.payments set cancelled_by = ORDER where order_id = ORDER",
        Kind::Phantom,
        "billing",
        "payment taken back without a cancellation",
    ),
    (
        "update billing.payments set event_id = gen_random_uuid() where order_id = ORDER",
        Kind::Phantom,
        "billing",
        "payment by an event that was never written",
    ),
    (
        "delete from billing.processed_events where event_id = CREATED",
        Kind::Phantom,
        "billing",
        "payment without a record of its event",
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
        "refund that was not asked for",
    ),
    (
        "update orders.orders set total_amount = 2701 where id = ORDER",
        Kind::Sums,
        "orders",
        "total that is not the sum of the lines",
    ),
    (
        "update orders.orders set status = 'reserved', confirmed_at = null where id = ORDER",
        Kind::Sums,
        "orders",
        "answered, and still open",
    ),
    (
        "update inventory.reservation_lines set quantity = 3 where reservation_id = RESERVATION and line_number = 1",
        Kind::Sums,
        "inventory",
        "put aside something else than was ordered",
    ),
    (
        "update inventory.reservation_lines set sku = 'TEA-002' where reservation_id = RESERVATION and line_number = 1",
        Kind::Sums,
        "inventory",
        "put aside something else than was ordered",
    ),
    (
        "delete from inventory.reservation_lines where reservation_id = RESERVATION and line_number = 2",
        Kind::Sums,
        "inventory",
        "put aside something else than was ordered",
    ),
    (
        "delete from orders.order_lines where order_id = ORDER and line_number = 2",
        Kind::Sums,
        "inventory",
        "put aside more lines than were ordered",
    ),
    (
        "update inventory.stock set reserved = reserved - 1 where sku = 'MUG-001'",
        Kind::Sums,
        "inventory",
        "stock whose `reserved` is not the sum of its reservations",
    ),
    (
        "update inventory.reservations set state = 'rejected' where order_id = ORDER",
        Kind::Sums,
        "inventory",
        "the pieces put aside are not those of the confirmed orders",
    ),
    (
        "update inventory.reservations set state = 'rejected' where order_id = ORDER",
        Kind::Sums,
        "inventory",
        "confirmed, but nothing is put aside",
    ),
    (
        "update billing.payments set amount = 1 where order_id = ORDER",
        Kind::Sums,
        "billing",
        "payment that is not the total of the order",
    ),
    (
        "update billing.payments set state = 'declined', charge_id = null where order_id = ORDER",
        Kind::Sums,
        "billing",
        "confirmed, but not paid",
    ),
    (
        "update billing.payments set state = 'declined', charge_id = null where order_id = ORDER",
        Kind::Sums,
        "provider",
        "charged, and billing believes that it was not",
    ),
    (
        "update provider.charges set amount = 1 where id = CHARGE",
        Kind::Sums,
        "provider",
        "billing holds a charge that the provider does not know like that",
    ),
    (
        "update provider.charges set amount = 1 where id = CHARGE",
        Kind::Sums,
        "provider",
        "charged minus refunded is not what the confirmed orders cost",
    ),
    (
        "CANCELLED update provider.refunds set amount = 1 where charge_id = CHARGE",
        Kind::Sums,
        "provider",
        "billing holds a refund that the provider does not know like that",
    ),
    (
        "CANCELLED update billing.payments set state = 'captured', refund_id = null where order_id = ORDER",
        Kind::Missing,
        "billing",
        "cancellation known, but the charge is not given back",
    ),
    (
        "delete from inventory.outbox where event_id = STOCK_EVENT",
        Kind::Missing,
        "inventory",
        "reservation without its event",
    ),
    (
        "CANCELLED delete from inventory.outbox where event_id = RELEASE_EVENT",
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
        "CANCELLED delete from billing.outbox where event_id = REFUND_EVENT",
        Kind::Missing,
        "billing",
        "refund without its event",
    ),
];

#[tokio::test]
async fn every_kind_of_wrong_is_found_and_named() -> Result<()> {
    let mut books = Books::new().await?;
    let (good, victim) = (books.order().await?, books.order().await?);
    for (planted, kind, place, what) in WRONGS {
        let audit = books.audit_if(victim, planted, &[good, victim]).await?;
        let found = audit
            .findings
            .iter()
            .find(|found| (found.kind, &*found.place, &*found.what) == (kind, place, what));
        let found = found.with_context(|| format!("not found: {what}, in {:#?}", audit.findings))?;
        assert_eq!(found.count, 1, "{what}: {:?}", audit.findings);
        let named = [victim.to_string(), "MUG-001".into(), "all orders".into()];
        assert!(named.contains(&found.first[0]), "{found:?}");
        assert!(!audit.at_rest() || kind != Kind::Missing, "{what} and at rest");
        let table = audit.table(Dropped::default()).join("\n");
        assert!(table.contains(what) && table.contains(&found.first[0]), "{table}");
    }
    let audit = books.audit(&[good, victim]).await?;
    assert!(audit.findings.is_empty(), "the books did not survive the test: {audit:?}");
    Ok(())
}

/// No finding of the query is left out above.
#[test]
fn every_finding_of_the_query_is_planted() {
    let query = include_str!("../../src/audit.sql");
    let kinds = ["missing", "disorder", "doubled", "phantom", "sums"];
    let mut found: Vec<&str> = vec![];
    for line in query.lines().filter(|line| line.trim().starts_with("select '")) {
        let quoted: Vec<_> = line.split('\'').skip(1).step_by(2).collect();
        // One of them says whose answer it is by a column, and not by a word.
        let place_is_a_word = quoted.len() > 2 && PLACES.contains(&quoted[1]);
        if kinds.contains(&quoted[0]) {
            found.extend(quoted.get(if place_is_a_word { 2 } else { 1 }).copied());
        }
    }
    assert!(found.len() > 40, "the query was not understood: {found:?}");
    for what in found {
        assert!(WRONGS.iter().any(|(.., planted)| *planted == what), "nobody plants: {what}");
    }
}

/// As if that order's events had been erased, and the memory of them, after their time.
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

/// What cannot be told without the event itself.
const NEEDS_THE_EVENT: [&str; 15] = [
    "reservation without its event",
    "payment without its event",
    "order without its event",
    "confirmed order without its event",
    "order with two creation events",
    "order confirmed more than once",
    "event without its order",
    "confirmation of an order that is not confirmed",
    "reservation by an event that was never written",
    "reservation without a record of its event",
    "payment by an event that was never written",
    "payment without a record of its event",
    "answer that nobody gave",
    "answer without a record of its event",
    "answered, but the order has not heard of it",
];

#[tokio::test]
async fn what_retention_erased_is_not_missing_and_everything_else_still_is() -> Result<()> {
    let mut books = Books::new().await?;
    let (old, young) = (books.order().await?, books.order().await?);
    books.run(&about(old, RETENTION)).await?;
    let audit = books.audit(&[old, young]).await?;
    assert!(audit.findings.is_empty() && audit.at_rest(), "{audit:?}");

    // The same wrongs as ever in what is young; and in what is old, all that does not need the event itself.
    for (victim, is_old) in [(young, false), (old, true)] {
        for (planted, kind, place, what) in WRONGS {
            if is_old && NEEDS_THE_EVENT.contains(&what) {
                continue;
            }
            let audit = books.audit_if(victim, planted, &[old, young]).await?;
            let found = |f: &&demo::audit::Finding| (f.kind, &*f.place, &*f.what) == (kind, place, what);
            let found = audit.findings.iter().find(found);
            found.with_context(|| format!("not found: {what} (old: {is_old}), in {:#?}", audit.findings))?;
        }
    }
    Ok(())
}
