//! What was set aside or discarded is not missing. Everything else that is missing is still found.

use anyhow::Result;
use demo::reconciliation::{DuplicatesDropped, Kind};

use crate::records::{COMPENSATED, CONFIRMED, ORDER_CANCELLED, PLACED, RESERVED, Records, about};

#[tokio::test]
async fn consistent_records_have_no_findings() -> Result<()> {
    let mut records = Records::new().await?;
    let empty = records.reconcile(&[]).await?;
    assert!(empty.is_quiescent() && empty.findings.is_empty() && empty.orders == 0, "{empty:?}");

    let orders = [records.order().await?, records.order().await?, records.order().await?];
    // An order of another client has no acknowledgement. The same acknowledgement twice counts once.
    let result = records.reconcile(&[orders[0], orders[1], orders[1]]).await?;
    assert!(result.is_quiescent() && !result.is_violated() && result.findings.is_empty(), "{result:?}");
    assert_eq!((result.acknowledged, result.orders, result.confirmed, result.events), (2, 3, 3, 12));
    assert_eq!((result.in_inventory, result.in_billing, result.charges), (3, 3, 3));
    assert_eq!(
        (result.charged, result.confirmed_total, result.reserved, result.confirmed_pieces),
        (8100, 8100, 9, 9)
    );

    // One of them is cancelled.
    records.run(&about(orders[2], COMPENSATED)).await?;
    let result = records.reconcile(&orders).await?;
    assert!(result.is_quiescent() && !result.is_violated() && result.findings.is_empty(), "{result:?}");
    assert_eq!((result.events, result.confirmed, result.cancelled), (15, 2, 1));
    assert_eq!(
        (result.charged, result.refunded, result.confirmed_total, result.reserved),
        (8100, 2700, 5400, 6)
    );
    Ok(())
}

#[tokio::test]
async fn pending_event_is_not_missing_and_the_system_is_not_quiescent() -> Result<()> {
    let mut records = Records::new().await?;
    let order = records.order_that(PLACED).await?;
    records.run("update orders.outbox set published_at = null").await?;
    let result = records.reconcile(&[order]).await?;
    assert!(result.findings.is_empty() && !result.is_quiescent(), "{result:?}");
    assert_eq!((result.pending, result.open, result.parked), (1, 1, 0));

    // A parked event is not published by itself, so nothing is in progress.
    records.run("update orders.outbox set parked_at = now()").await?;
    let result = records.reconcile(&[order]).await?;
    assert_eq!((result.pending, result.open, result.parked), (0, 0, 1));

    // Published, but not applied: its effects may still arrive.
    records.run("update orders.outbox set parked_at = null, published_at = now()").await?;
    let result = records.reconcile(&[order]).await?;
    assert_eq!((result.count(Kind::Missing, "inventory"), result.count(Kind::Missing, "billing")), (1, 1));
    assert_eq!(result.affected[&Kind::Missing], 1, "one order, at two places");
    let broken = result.broken().unwrap_or_default();
    assert!(
        broken.starts_with("1 order missing (billing never applied the order: no payment exists; inv"),
        "{broken}"
    );
    assert!(!result.is_quiescent() && !result.is_violated(), "{result:?}");
    Ok(())
}

#[tokio::test]
async fn pending_payment_is_in_progress() -> Result<()> {
    let mut records = Records::new().await?;
    let order = records.order_that(&format!("{PLACED}{RESERVED}{CONFIRMED}")).await?;
    let asked = "update billing.payments set state = 'asked', charge_id = null, answered_at = null;
                 delete from billing.outbox; delete from orders.outbox where event_type = 'OrderConfirmed';
                 delete from orders.answers where source = '/billing';
                 update orders.orders set status = 'reserved', confirmed_at = null, version = 1;";
    // The provider has charged, and billing has not recorded it: the state after a crash in between.
    records.run(asked).await?;
    let result = records.reconcile(&[order]).await?;
    assert!(result.findings.is_empty() && !result.is_quiescent(), "{result:?}");
    assert_eq!((result.pending, result.payments_pending, result.open), (0, 1, 1));
    Ok(())
}

/// A dead letter at a service, with the order's creation.
fn dead_letter(service: &str) -> String {
    format!(
        "insert into {service}.dead_letters (queue, event_id, event_type, subject, reason, detail, headers,
                                             routing_key, body)
             values ('{service}.events', CREATED, 'OrderCreated', ORDER, 'permanent', 'odd', '{{}}', 'order.created', '');"
    )
}

#[tokio::test]
async fn dead_letter_excuses_a_missing_effect_until_it_counts_as_replayed() -> Result<()> {
    let mut records = Records::new().await?;
    let good = records.order().await?;
    let victim = records.order_that(&format!("{PLACED}{RESERVED}{}", dead_letter("billing"))).await?;
    let result = records.reconcile(&[good, victim]).await?;
    assert!(result.findings.is_empty() && result.is_quiescent(), "{result:?}");
    assert_eq!((result.waiting_for_operator(), result.discarded()), (1, 0));
    let table = result.table(DuplicatesDropped::default()).join("\n");
    assert!(table.contains("SET ASIDE at billing: waiting for an operator: 1 (billing/1)"), "{table}");
    // At billing only: inventory has no dead letter.
    let not_applied = "delete from inventory.reservation_lines where reservation_id = RESERVATION;
                delete from inventory.reservations where id = RESERVATION";
    let result = records.reconcile_after(victim, not_applied, &[good, victim]).await?;
    assert_eq!(result.count(Kind::Missing, "inventory"), 1);

    let resolve = |how: &str| {
        format!("update billing.dead_letters set resolved_at = now(), note = 'x', resolution = '{how}'")
    };
    records.run(&resolve("discarded")).await?;
    let result = records.reconcile(&[good, victim]).await?;
    assert!(result.findings.is_empty(), "{result:?}");
    assert_eq!((result.waiting_for_operator(), result.discarded()), (0, 1));

    // Recorded as applied, but it is not: the dead letter excuses nothing any more.
    records.run(&resolve("replayed")).await?;
    let result = records.reconcile(&[good, victim]).await?;
    assert_eq!((result.count(Kind::Missing, "billing"), result.waiting_for_operator()), (1, 0));
    Ok(())
}

#[tokio::test]
async fn answer_that_orders_has_set_aside_is_not_missing() -> Result<()> {
    let mut records = Records::new().await?;
    let not_applied = "delete from orders.answers where event_id = STOCK_EVENT;
                 delete from orders.processed_events where event_id = STOCK_EVENT;
                 update orders.orders set status = 'pending' where id = ORDER;";
    let letter = "insert into orders.dead_letters (queue, event_id, event_type, subject, reason, detail, headers,
                                                   routing_key, body)
                      values ('orders.events', STOCK_EVENT, 'StockReserved', RESERVATION, 'permanent', 'odd', '{}',
                              'stock.reserved', '');";
    let billing = dead_letter("billing");
    let victim = records.order_that(&format!("{PLACED}{RESERVED}{billing}{not_applied}")).await?;
    assert_eq!(records.reconcile(&[victim]).await?.count(Kind::Missing, "inventory"), 1);
    let result = records.reconcile_after(victim, letter, &[victim]).await?;
    assert!(result.findings.is_empty() && result.is_quiescent(), "{result:?}");
    assert_eq!(result.waiting_for_operator(), 2);
    Ok(())
}

#[tokio::test]
async fn discarded_event_is_counted_and_its_effects_are_not_expected() -> Result<()> {
    let mut records = Records::new().await?;
    let good = records.order().await?;
    let parked = "update orders.outbox set published_at = null, attempts = 10, parked_at = now()
                      where aggregate_id = ORDER;";
    let victim = records.order_that(&format!("{PLACED}{parked}")).await?;
    let result = records.reconcile(&[good, victim]).await?;
    assert_eq!((result.parked, result.waiting_for_operator(), result.discarded()), (1, 1, 0), "{result:?}");
    records
        .run(&format!(
            "insert into orders.outbox_discarded
                 select outbox.*, now(), 'discarded' from orders.outbox where aggregate_id = '{victim}';
             delete from orders.outbox where aggregate_id = '{victim}'"
        ))
        .await?;
    let result = records.reconcile(&[good, victim]).await?;
    assert!(result.findings.is_empty() && result.is_quiescent(), "{result:?}");
    assert_eq!((result.parked, result.waiting_for_operator(), result.discarded()), (0, 0, 1));
    // An event that is in neither table is missing.
    records.run("delete from orders.outbox_discarded").await?;
    assert!(records.reconcile(&[good, victim]).await?.count(Kind::Missing, "orders") > 0);
    Ok(())
}

#[tokio::test]
async fn only_a_creation_that_was_discarded_or_set_aside_by_the_broker_may_be_overtaken() -> Result<()> {
    // Both services have applied the cancellation before the creation.
    let overtaken = format!(
        "{PLACED}{ORDER_CANCELLED}
         update inventory.cancelled_orders set came_first = true where order_id = ORDER;
         update billing.cancelled_orders set came_first = true where order_id = ORDER;"
    );
    let letters = format!("{}{}", dead_letter("inventory"), dead_letter("billing"));
    let replay = "update inventory.dead_letters set resolved_at = now(), resolution = 'replayed';
                  update billing.dead_letters set resolved_at = now(), resolution = 'replayed';";
    let by_broker =
        "update inventory.dead_letters set arrival = 'x'; update billing.dead_letters set arrival = 'x';";
    let discard_letters =
        "update inventory.dead_letters set resolved_at = now(), resolution = 'discarded', note = 'x';
         update billing.dead_letters set resolved_at = now(), resolution = 'discarded', note = 'x';";
    let discard = "insert into orders.outbox_discarded select outbox.*, now(), 'discarded' from orders.outbox
                       where aggregate_id = ORDER and event_type = 'OrderCreated';
                   delete from orders.outbox where aggregate_id = ORDER and event_type = 'OrderCreated';";
    let erase = "update orders.outbox_retention set erased_before = clock_timestamp();
                 delete from orders.outbox where aggregate_id = ORDER;";
    let cases = [
        ("set aside by the broker, and still waiting", format!("{overtaken}{letters}{by_broker}"), true),
        ("replayed afterwards, without an effect", format!("{overtaken}{letters}{by_broker}{replay}"), true),
        ("set aside by its consumer", format!("{overtaken}{letters}"), false),
        ("set aside by its consumer and replayed", format!("{overtaken}{letters}{replay}"), false),
        ("set aside by its consumer and discarded", format!("{overtaken}{letters}{discard_letters}"), true),
        ("discarded in the outbox", format!("{overtaken}{discard}"), true),
        (
            "set aside by the broker, and its events erased since",
            format!("{overtaken}{letters}{by_broker}{erase}"),
            true,
        ),
        ("never set aside", overtaken.clone(), false),
        ("never set aside, and its events erased since", format!("{overtaken}{erase}"), false),
    ];
    for (name, sql, is_fine) in cases {
        let mut records = Records::new().await?;
        let victim = records.order_that(&sql).await?;
        let result = records.reconcile(&[victim]).await?;
        assert_eq!(result.findings.is_empty(), is_fine, "{name}: {:#?}", result.findings);
        if !is_fine {
            let out_of_order = ["inventory", "billing"].map(|place| result.count(Kind::OutOfOrder, place));
            assert_eq!(out_of_order, [1, 1], "{name}");
        }
    }
    Ok(())
}

/// Otherwise a message that was discarded long ago would hide every later wrong sum.
#[tokio::test]
async fn discarded_message_excludes_only_its_own_order_from_the_sums() -> Result<()> {
    let mut records = Records::new().await?;
    let discarded = format!(
        "{PLACED}{RESERVED}{}
         update billing.dead_letters set resolved_at = now(), note = 'x', resolution = 'discarded';
         insert into inventory.dead_letters (queue, reason, detail, headers, routing_key, body, resolved_at, note,
                                             resolution)
             values ('inventory.events', 'malformed', 'odd', '{{}}', '', '', now(), 'x', 'discarded');",
        dead_letter("billing")
    );
    let excluded = records.order_that(&discarded).await?;
    let good = records.order().await?;
    let result = records.reconcile(&[excluded, good]).await?;
    assert!(result.findings.is_empty() && result.is_quiescent(), "{result:?}");
    let more = "update provider.charges set amount = amount + 1 where reference = ORDER;
                update billing.payments set amount = amount + 1 where order_id = ORDER;";
    let result = records.reconcile_after(good, more, &[excluded, good]).await?;
    let sum = "charged minus refunded differs from the total of confirmed orders";
    assert!(result.findings.iter().any(|found| found.what == sum), "{:?}", result.findings);
    Ok(())
}
