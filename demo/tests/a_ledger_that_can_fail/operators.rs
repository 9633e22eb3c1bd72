//! What was set aside, given up or erased is not missing; and nothing hides behind that.

use anyhow::Result;
use demo::audit::{Dropped, Kind};

use crate::books::{Books, CANCELLED, CONFIRMED, OFF, PLACED, RESERVED};

#[tokio::test]
async fn good_books_are_found_good() -> Result<()> {
    let mut books = Books::new().await?;
    let empty = books.audit(&[]).await?;
    assert!(empty.at_rest() && empty.findings.is_empty() && empty.orders == 0, "{empty:?}");

    let orders = [books.order().await?, books.order().await?, books.order().await?];
    // An order that nobody of ours placed is nobody's loss; the same acknowledgement twice is one promise.
    let audit = books.audit(&[orders[0], orders[1], orders[1]]).await?;
    assert!(audit.at_rest() && !audit.beyond_hope() && audit.findings.is_empty(), "{audit:?}");
    assert_eq!((audit.acknowledged, audit.orders, audit.confirmed, audit.events), (2, 3, 3, 12));
    assert_eq!((audit.in_inventory, audit.in_billing, audit.charges), (3, 3, 3));
    assert_eq!(
        (audit.charged, audit.confirmed_total, audit.put_aside, audit.confirmed_pieces),
        (8100, 8100, 9, 9)
    );

    // One of them is taken back.
    books.run(&crate::books::about(orders[2], CANCELLED)).await?;
    let audit = books.audit(&orders).await?;
    assert!(audit.at_rest() && !audit.beyond_hope() && audit.findings.is_empty(), "{audit:?}");
    assert_eq!((audit.events, audit.confirmed, audit.cancelled), (15, 2, 1));
    assert_eq!(
        (audit.charged, audit.refunded, audit.confirmed_total, audit.put_aside),
        (8100, 2700, 5400, 6)
    );
    Ok(())
}

#[tokio::test]
async fn what_is_on_its_way_is_neither_missing_nor_at_rest() -> Result<()> {
    let mut books = Books::new().await?;
    let order = books.order_that(PLACED).await?;
    books.run("update orders.outbox set published_at = null").await?;
    let audit = books.audit(&[order]).await?;
    assert!(audit.findings.is_empty() && !audit.at_rest(), "{audit:?}");
    assert_eq!((audit.owed, audit.open, audit.parked), (1, 1, 0));

    // Set aside, it does not go on by itself: nothing is under way any more.
    books.run("update orders.outbox set parked_at = now()").await?;
    let audit = books.audit(&[order]).await?;
    assert_eq!((audit.owed, audit.open, audit.parked), (0, 0, 1));

    // Published, and still no effect: that may take a moment, and is missing if it lasts.
    books.run("update orders.outbox set parked_at = null, published_at = now()").await?;
    let audit = books.audit(&[order]).await?;
    assert_eq!((audit.count(Kind::Missing, "inventory"), audit.count(Kind::Missing, "billing")), (1, 1));
    assert!(!audit.at_rest() && !audit.beyond_hope(), "{audit:?}");
    Ok(())
}

#[tokio::test]
async fn a_payment_that_is_still_to_be_asked_for_is_under_way() -> Result<()> {
    let mut books = Books::new().await?;
    let order = books.order_that(&format!("{PLACED}{RESERVED}{CONFIRMED}")).await?;
    let asked = "update billing.payments set state = 'asked', charge_id = null, answered_at = null;
                 delete from billing.outbox; delete from orders.outbox where event_type = 'OrderConfirmed';
                 delete from orders.answers where source = '/billing';
                 update orders.orders set status = 'reserved', confirmed_at = null, version = 1;";
    // The provider has charged, and billing does not know yet: that is what a crash in between looks like.
    books.run(asked).await?;
    let audit = books.audit(&[order]).await?;
    assert!(audit.findings.is_empty() && !audit.at_rest(), "{audit:?}");
    assert_eq!((audit.owed, audit.payments_owed, audit.open), (0, 1, 1));
    Ok(())
}

/// A letter at a service for the order's creation.
fn letter(service: &str) -> String {
    format!(
        "insert into {service}.dead_letters (queue, event_id, event_type, subject, reason, detail, headers,
                                             routing_key, body)
             values ('{service}.events', CREATED, 'OrderCreated', ORDER, 'permanent', 'odd', '{{}}', 'order.created', '');"
    )
}

#[tokio::test]
async fn what_was_set_aside_is_not_missing_and_is_missing_again_once_it_counts_as_applied() -> Result<()> {
    let mut books = Books::new().await?;
    let good = books.order().await?;
    let victim = books.order_that(&format!("{PLACED}{RESERVED}{}", letter("billing"))).await?;
    let audit = books.audit(&[good, victim]).await?;
    assert!(audit.findings.is_empty() && audit.at_rest(), "{audit:?}");
    assert_eq!((audit.set_aside(false), audit.set_aside(true)), (1, 0));
    let table = audit.table(Dropped::default()).join("\n");
    assert!(table.contains("ASIDE at billing: set aside, waiting for an operator: 1 (billing/1)"), "{table}");
    // At one place only: the other has no such letter to point at.
    let gone = "delete from inventory.reservation_lines where reservation_id = RESERVATION;
                delete from inventory.reservations where id = RESERVATION";
    let audit = books.audit_if(victim, gone, &[good, victim]).await?;
    assert_eq!(audit.count(Kind::Missing, "inventory"), 1);

    let settle = |how: &str| {
        format!("update billing.dead_letters set resolved_at = now(), note = 'x', resolution = '{how}'")
    };
    books.run(&settle("discarded")).await?;
    let audit = books.audit(&[good, victim]).await?;
    assert!(audit.findings.is_empty(), "{audit:?}");
    assert_eq!((audit.set_aside(false), audit.set_aside(true)), (0, 1));

    // Said to be applied, and it is not: the letter excuses nothing any more.
    books.run(&settle("replayed")).await?;
    let audit = books.audit(&[good, victim]).await?;
    assert_eq!((audit.count(Kind::Missing, "billing"), audit.set_aside(false)), (1, 0));
    Ok(())
}

#[tokio::test]
async fn an_answer_that_the_order_could_not_take_is_aside_and_not_missing() -> Result<()> {
    let mut books = Books::new().await?;
    let aside = "delete from orders.answers where event_id = STOCK_EVENT;
                 delete from orders.processed_events where event_id = STOCK_EVENT;
                 update orders.orders set status = 'pending' where id = ORDER;";
    let letter = "insert into orders.dead_letters (queue, event_id, event_type, subject, reason, detail, headers,
                                                   routing_key, body)
                      values ('orders.events', STOCK_EVENT, 'StockReserved', RESERVATION, 'permanent', 'odd', '{}',
                              'stock.reserved', '');";
    let billing = self::letter("billing");
    let victim = books.order_that(&format!("{PLACED}{RESERVED}{billing}{aside}")).await?;
    assert_eq!(books.audit(&[victim]).await?.count(Kind::Missing, "inventory"), 1);
    let audit = books.audit_if(victim, letter, &[victim]).await?;
    assert!(audit.findings.is_empty() && audit.at_rest(), "{audit:?}");
    assert_eq!(audit.set_aside(false), 2);
    Ok(())
}

#[tokio::test]
async fn an_event_that_was_given_up_is_counted_as_that_and_its_effects_are_not_owed() -> Result<()> {
    let mut books = Books::new().await?;
    let good = books.order().await?;
    let parked = "update orders.outbox set published_at = null, attempts = 10, parked_at = now()
                      where aggregate_id = ORDER;";
    let victim = books.order_that(&format!("{PLACED}{parked}")).await?;
    let audit = books.audit(&[good, victim]).await?;
    assert_eq!((audit.parked, audit.set_aside(false), audit.set_aside(true)), (1, 1, 0), "{audit:?}");
    books
        .run(&format!(
            "insert into orders.outbox_discarded
                 select outbox.*, now(), 'given up' from orders.outbox where aggregate_id = '{victim}';
             delete from orders.outbox where aggregate_id = '{victim}'"
        ))
        .await?;
    let audit = books.audit(&[good, victim]).await?;
    assert!(audit.findings.is_empty() && audit.at_rest(), "{audit:?}");
    assert_eq!((audit.parked, audit.set_aside(false), audit.set_aside(true)), (0, 0, 1));
    // An event that nobody gave up, and that is in neither table, is missing as ever.
    books.run("delete from orders.outbox_discarded").await?;
    assert!(books.audit(&[good, victim]).await?.count(Kind::Missing, "orders") > 0);
    Ok(())
}

#[tokio::test]
async fn a_creation_that_an_operator_had_in_hand_may_be_overtaken_by_its_cancellation_and_no_other()
-> Result<()> {
    // Cancelled at both services before its creation got there.
    let overtaken = format!(
        "{PLACED}{OFF}
         update inventory.cancelled_orders set came_first = true where order_id = ORDER;
         update billing.cancelled_orders set came_first = true where order_id = ORDER;"
    );
    let letters = format!("{}{}", letter("inventory"), letter("billing"));
    let settle = "update inventory.dead_letters set resolved_at = now(), resolution = 'replayed';
                  update billing.dead_letters set resolved_at = now(), resolution = 'replayed';";
    let discard = "insert into orders.outbox_discarded select outbox.*, now(), 'given up' from orders.outbox
                       where aggregate_id = ORDER and event_type = 'OrderCreated';
                   delete from orders.outbox where aggregate_id = ORDER and event_type = 'OrderCreated';";
    let erase = "update orders.outbox_retention set erased_before = clock_timestamp();
                 delete from orders.outbox where aggregate_id = ORDER;";
    let cases = [
        ("set aside, overtaken, and still waiting", format!("{overtaken}{letters}"), true),
        ("replayed afterwards, which rightly does nothing", format!("{overtaken}{letters}{settle}"), true),
        ("given up in the outbox", format!("{overtaken}{discard}"), true),
        ("set aside, and its events erased since", format!("{overtaken}{letters}{erase}"), true),
        ("nobody had it in hand", overtaken.clone(), false),
        ("nobody had it in hand, and its events are erased", format!("{overtaken}{erase}"), false),
    ];
    for (name, sql, is_fine) in cases {
        let mut books = Books::new().await?;
        let victim = books.order_that(&sql).await?;
        let audit = books.audit(&[victim]).await?;
        assert_eq!(audit.findings.is_empty(), is_fine, "{name}: {:#?}", audit.findings);
        if !is_fine {
            let disorder = ["inventory", "billing"].map(|place| audit.count(Kind::Disorder, place));
            assert_eq!(disorder, [1, 1], "{name}");
        }
    }
    Ok(())
}

/// One message that was given up long ago does not blind the sums to everything that comes later.
#[tokio::test]
async fn what_an_operator_gave_up_takes_only_its_own_order_out_of_the_sums() -> Result<()> {
    let mut books = Books::new().await?;
    let given_up = format!(
        "{PLACED}{RESERVED}{}
         update billing.dead_letters set resolved_at = now(), note = 'x', resolution = 'discarded';
         insert into inventory.dead_letters (queue, reason, detail, headers, routing_key, body, resolved_at, note,
                                             resolution)
             values ('inventory.events', 'malformed', 'odd', '{{}}', '', '', now(), 'x', 'discarded');",
        letter("billing")
    );
    let off = books.order_that(&given_up).await?;
    let good = books.order().await?;
    let audit = books.audit(&[off, good]).await?;
    assert!(audit.findings.is_empty() && audit.at_rest(), "{audit:?}");
    let more = "update provider.charges set amount = amount + 1 where reference = ORDER;
                update billing.payments set amount = amount + 1 where order_id = ORDER;";
    let audit = books.audit_if(good, more, &[off, good]).await?;
    let sum = "charged minus refunded is not what the confirmed orders cost";
    assert!(audit.findings.iter().any(|found| found.what == sum), "{:?}", audit.findings);
    Ok(())
}
