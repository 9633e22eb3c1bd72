//! Every kind of wrong is planted in a real database, one at a time, and has to be found. A sum that cannot fail
//! proves nothing.

use anyhow::{Context as _, Result};
use demo::audit::{Audit, Dropped, Kind, query};
use demo::ledger::{self, Ledger};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use std::time::SystemTime;
use testbed::{TestDatabase, database};
use uuid::Uuid;

struct Books {
    database: TestDatabase,
    admin: PgConnection,
}

/// The services' tables, without the services.
async fn books() -> Result<Books> {
    let database = database().await?;
    testbed::migrate(database.urls()).await?;
    let admin = PgConnection::connect(&database.admin_url()).await?;
    Ok(Books { database, admin })
}

impl Books {
    /// An order of two lines that went its whole way.
    async fn order(&mut self) -> Result<Uuid> {
        let (order, event) = (Uuid::now_v7(), Uuid::now_v7());
        self.run(&format!(
            "insert into orders.orders (id, customer_id, status, total_amount, currency)
                 values ('{order}', gen_random_uuid(), 'pending', 2700, 'EUR');
             insert into orders.order_lines (order_id, line_number, sku, quantity, unit_price)
                 values ('{order}', 1, 'TEA-001', 2, 625), ('{order}', 2, 'MUG-001', 1, 1450);
             insert into orders.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                                        schema_version, payload, lane, published_at)
                 values ('{event}', 'order', '{order}', 1, 'OrderCreated', 1, '{{}}', 0, now());
             insert into inventory.processed_events (consumer, event_id, event_type)
                 values ('inventory', '{event}', 'OrderCreated');
             insert into inventory.reservations (order_id, line_number, sku, quantity, event_id)
                 values ('{order}', 1, 'TEA-001', 2, '{event}'), ('{order}', 2, 'MUG-001', 1, '{event}');
             update inventory.stock set reserved = reserved + 2 where sku = 'TEA-001';
             update inventory.stock set reserved = reserved + 1 where sku = 'MUG-001';
             insert into billing.processed_events (consumer, event_id, event_type)
                 values ('billing', '{event}', 'OrderCreated');
             insert into billing.invoices (order_id, customer_id, amount, currency, event_id)
                 values ('{order}', gen_random_uuid(), 2700, 'EUR', '{event}')"
        ))
        .await?;
        Ok(order)
    }

    async fn run(&mut self, sql: &str) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut self.admin).await?;
        Ok(())
    }

    /// As the auditor: the query must need no more than she may.
    async fn audit(&self, acknowledged: &[Uuid]) -> Result<Audit> {
        let mut auditor = PgConnection::connect(&self.database.url("auditor")).await?;
        let json: String =
            sqlx::query_scalar(AssertSqlSafe(query(acknowledged))).fetch_one(&mut auditor).await?;
        Audit::parse(&json)
    }
}

#[tokio::test]
async fn good_books_are_found_good() -> Result<()> {
    let mut books = books().await?;
    let empty = books.audit(&[]).await?;
    assert!(empty.at_rest() && empty.findings.is_empty() && empty.orders == 0, "{empty:?}");

    let orders = [books.order().await?, books.order().await?, books.order().await?];
    // An order that nobody of ours placed is nobody's loss; the same acknowledgement twice is one promise.
    let audit = books.audit(&[orders[0], orders[1], orders[1]]).await?;
    assert!(audit.at_rest() && !audit.beyond_hope() && audit.findings.is_empty(), "{audit:?}");
    assert_eq!((audit.acknowledged, audit.orders, audit.events), (2, 3, 3));
    assert_eq!((audit.lines, audit.lines_reserved), (6, 6));
    assert_eq!((audit.orders_reserved, audit.orders_invoiced), (3, 3));

    // One of them is taken back.
    let cancelled = CANCELLED.replace("ORDER", &format!("'{}'", orders[2]));
    books.run(&cancelled).await?;
    let audit = books.audit(&orders).await?;
    assert!(audit.at_rest() && !audit.beyond_hope() && audit.findings.is_empty(), "{audit:?}");
    assert_eq!((audit.events, audit.cancelled), (4, 1));
    Ok(())
}

#[tokio::test]
async fn what_is_on_its_way_is_neither_missing_nor_at_rest() -> Result<()> {
    let mut books = books().await?;
    let order = books.order().await?;
    books
        .run(
            "truncate inventory.reservations, inventory.processed_events, billing.invoices, billing.processed_events;
             update inventory.stock set reserved = 0; update orders.outbox set published_at = null",
        )
        .await?;
    let audit = books.audit(&[order]).await?;
    assert!(audit.findings.is_empty() && !audit.at_rest(), "{audit:?}");
    assert_eq!((audit.owed, audit.parked), (1, 0));

    books.run("update orders.outbox set parked_at = now()").await?;
    let audit = books.audit(&[order]).await?;
    assert_eq!((audit.owed, audit.parked), (0, 1));

    // Published, and still no effect: that may take a moment, and is missing if it lasts.
    books.run("update orders.outbox set parked_at = null, published_at = now()").await?;
    let audit = books.audit(&[order]).await?;
    assert_eq!((audit.count(Kind::Missing, "inventory"), audit.count(Kind::Missing, "billing")), (1, 1));
    assert!(!audit.at_rest() && !audit.beyond_hope(), "{audit:?}");
    Ok(())
}

#[tokio::test]
async fn what_was_set_aside_is_not_missing_and_is_missing_again_once_it_counts_as_applied() -> Result<()> {
    let mut books = books().await?;
    let (good, victim) = (books.order().await?, books.order().await?);
    books
        .run(&format!(
            "insert into billing.dead_letters (queue, event_id, reason, detail, headers, routing_key, body)
                 select 'billing.events', event_id, 'permanent', 'odd', '{{}}', 'order.created', ''
                 from orders.outbox where aggregate_id = '{victim}';
             delete from billing.invoices where order_id = '{victim}';
             delete from billing.processed_events
                 where event_id in (select event_id from orders.outbox where aggregate_id = '{victim}')"
        ))
        .await?;
    let audit = books.audit(&[good, victim]).await?;
    assert!(audit.findings.is_empty() && audit.at_rest(), "{audit:?}");
    assert_eq!((audit.set_aside(false), audit.set_aside(true)), (1, 0));
    let table = audit.table(Dropped::default()).join("\n");
    assert!(table.contains("ASIDE at billing: set aside, waiting for an operator: 1 (billing/1)"), "{table}");
    // At one place only: the other has no such letter to point at.
    books
        .run(&format!(
            "delete from inventory.reservations where order_id = '{victim}' and line_number = 1;
                        update inventory.stock set reserved = reserved - 2 where sku = 'TEA-001'"
        ))
        .await?;
    assert_eq!(books.audit(&[good, victim]).await?.count(Kind::Missing, "inventory"), 1);
    books
        .run(&format!(
            "insert into inventory.reservations (order_id, line_number, sku, quantity, event_id)
                            select aggregate_id, 1, 'TEA-001', 2, event_id from orders.outbox
                            where aggregate_id = '{victim}';
                        update inventory.stock set reserved = reserved + 2 where sku = 'TEA-001'"
        ))
        .await?;

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
async fn an_event_that_was_given_up_is_counted_as_that_and_its_effects_are_not_owed() -> Result<()> {
    let mut books = books().await?;
    let (good, victim) = (books.order().await?, books.order().await?);
    books
        .run(&format!(
            "delete from inventory.reservations where order_id = '{victim}';
             update inventory.stock set reserved = reserved / 2;
             delete from billing.invoices where order_id = '{victim}';
             update orders.outbox set published_at = null, attempts = 10, parked_at = now()
                 where aggregate_id = '{victim}'"
        ))
        .await?;
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

/// An order that was taken back, and what that did.
const CANCELLED: &str = "
    update orders.orders set status = 'cancelled', version = 2, cancelled_at = now() where id = ORDER;
    insert into orders.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                               payload, lane, published_at)
        values (ORDER, 'order', ORDER, 2, 'OrderCancelled', 1, '{}', 0, now());
    update inventory.reservations set released_by = ORDER, released_at = now() where order_id = ORDER;
    update inventory.stock set reserved = reserved - 2 where sku = 'TEA-001';
    update inventory.stock set reserved = reserved - 1 where sku = 'MUG-001';
    insert into inventory.cancelled_orders (order_id, event_id, came_first) values (ORDER, ORDER, false);
    insert into billing.credit_notes (order_id, amount, currency, event_id) values (ORDER, 2700, 'EUR', ORDER);
    insert into billing.cancelled_orders (order_id, event_id, came_first) values (ORDER, ORDER, false);";

/// What is planted (`ORDER` stands for the victim, `CANCELLED` for the statements above), and what has to be found.
const WRONGS: [(&str, Kind, &str, &str); 30] = [
    (
        "CANCELLED delete from orders.outbox where event_type = 'OrderCancelled'",
        Kind::Missing,
        "orders",
        "cancelled order without its event",
    ),
    (
        "CANCELLED update inventory.reservations set released_by = null, released_at = null where order_id = ORDER",
        Kind::Missing,
        "inventory",
        "cancellation published, but the stock is not released",
    ),
    (
        "CANCELLED delete from billing.credit_notes",
        Kind::Missing,
        "billing",
        "cancellation published, but the invoice is not credited",
    ),
    (
        "CANCELLED update inventory.cancelled_orders set came_first = true",
        Kind::Disorder,
        "inventory",
        "cancelled before it was created",
    ),
    (
        "CANCELLED update billing.cancelled_orders set came_first = true",
        Kind::Disorder,
        "billing",
        "cancelled before it was created",
    ),
    (
        "CANCELLED insert into billing.credit_notes (order_id, amount, currency, event_id)
                   select order_id, amount, currency, event_id from billing.credit_notes",
        Kind::Doubled,
        "billing",
        "invoice credited more than once",
    ),
    (
        "CANCELLED update orders.orders set status = 'pending', cancelled_at = null where id = ORDER",
        Kind::Phantom,
        "orders",
        "cancellation of an order that is not cancelled",
    ),
    (
        "update inventory.reservations set released_by = ORDER where order_id = ORDER",
        Kind::Phantom,
        "inventory",
        "stock released without a cancellation",
    ),
    (
        "insert into billing.credit_notes (order_id, amount, currency, event_id) values (ORDER, 2700, 'EUR', ORDER)",
        Kind::Phantom,
        "billing",
        "credit note without a cancellation",
    ),
    (
        "CANCELLED update billing.credit_notes set amount = 1",
        Kind::Sums,
        "billing",
        "credit note over another amount than the invoice",
    ),
    (
        "delete from billing.invoices where order_id = ORDER; delete from inventory.reservations where order_id = ORDER;
         update inventory.stock set reserved = 0; delete from orders.outbox where aggregate_id = ORDER;
         delete from orders.order_lines where order_id = ORDER; delete from orders.orders where id = ORDER",
        Kind::Missing,
        "orders",
        "acknowledged, but there is no such order",
    ),
    ("delete from orders.outbox where aggregate_id = ORDER", Kind::Missing, "orders", "order without its event"),
    (
        "delete from inventory.reservations where order_id = ORDER and line_number = 2",
        Kind::Missing,
        "inventory",
        "published, but a line of the order is not reserved",
    ),
    (
        "delete from billing.invoices where order_id = ORDER",
        Kind::Missing,
        "billing",
        "published, but the order is not invoiced",
    ),
    (
        "insert into orders.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                                    payload, lane)
         values (gen_random_uuid(), 'order', ORDER, 2, 'OrderCreated', 1, '{}', 0)",
        Kind::Doubled,
        "orders",
        "order with two creation events",
    ),
    (
        "insert into inventory.reservations (order_id, line_number, sku, quantity, event_id)
         select order_id, line_number, sku, quantity, event_id from inventory.reservations
         where order_id = ORDER and line_number = 1",
        Kind::Doubled,
        "inventory",
        "order line reserved more than once",
    ),
    (
        "update inventory.reservations set event_id = gen_random_uuid() where order_id = ORDER and line_number = 1",
        Kind::Doubled,
        "inventory",
        "order applied under two event ids",
    ),
    (
        "insert into billing.invoices (order_id, customer_id, amount, currency, event_id)
         select order_id, customer_id, amount, currency, event_id from billing.invoices where order_id = ORDER",
        Kind::Doubled,
        "billing",
        "order invoiced more than once",
    ),
    (
        "delete from orders.order_lines where order_id = ORDER; delete from orders.orders where id = ORDER",
        Kind::Phantom,
        "orders",
        "event without its order",
    ),
    (
        "delete from orders.order_lines where order_id = ORDER and line_number = 2",
        Kind::Phantom,
        "inventory",
        "reservation without such an order line",
    ),
    (
        "update inventory.reservations set event_id = gen_random_uuid() where order_id = ORDER",
        Kind::Phantom,
        "inventory",
        "reservation by an event that was never written",
    ),
    (
        "delete from inventory.processed_events where event_id in
             (select event_id from inventory.reservations where order_id = ORDER)",
        Kind::Phantom,
        "inventory",
        "reservation without a record of its event",
    ),
    (
        "delete from orders.order_lines where order_id = ORDER; delete from orders.orders where id = ORDER",
        Kind::Phantom,
        "billing",
        "invoice without such an order",
    ),
    (
        "update billing.invoices set event_id = gen_random_uuid() where order_id = ORDER",
        Kind::Phantom,
        "billing",
        "invoice by an event that was never written",
    ),
    (
        "delete from billing.processed_events where event_id in
             (select event_id from billing.invoices where order_id = ORDER)",
        Kind::Phantom,
        "billing",
        "invoice without a record of its event",
    ),
    (
        "update orders.orders set total_amount = 2701 where id = ORDER",
        Kind::Sums,
        "orders",
        "total that is not the sum of the lines",
    ),
    (
        "update inventory.reservations set quantity = 3 where order_id = ORDER and line_number = 1",
        Kind::Sums,
        "inventory",
        "reserved something else than was ordered",
    ),
    (
        "update inventory.reservations set sku = 'TEA-002' where order_id = ORDER and line_number = 1",
        Kind::Sums,
        "inventory",
        "reserved something else than was ordered",
    ),
    (
        "update inventory.stock set reserved = reserved - 1 where sku = 'MUG-001'",
        Kind::Sums,
        "inventory",
        "stock whose `reserved` is not the sum of its reservations",
    ),
    (
        "update billing.invoices set amount = 1 where order_id = ORDER",
        Kind::Sums,
        "billing",
        "invoice whose amount is not the total of the order",
    ),
];

#[tokio::test]
async fn every_kind_of_wrong_is_found_and_named() -> Result<()> {
    let mut books = books().await?;
    let good = books.order().await?;
    let victim = books.order().await?;
    for (planted, kind, place, what) in WRONGS {
        // All in a transaction that is taken back, so that each stands alone.
        let mut transaction = books.admin.begin().await?;
        let sql = planted.replace("CANCELLED", CANCELLED).replace("ORDER", &format!("'{victim}'"));
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *transaction).await.context(planted)?;
        let json: String =
            sqlx::query_scalar(AssertSqlSafe(query(&[good, victim]))).fetch_one(&mut *transaction).await?;
        transaction.rollback().await?;
        let audit = Audit::parse(&json)?;
        let found = audit
            .findings
            .iter()
            .find(|found| (found.kind, &*found.place, &*found.what) == (kind, place, what));
        let found = found.with_context(|| format!("not found: {what}, in {:#?}", audit.findings))?;
        assert_eq!(found.count, 1, "{what}: {:?}", audit.findings);
        assert!(found.first[0] == victim.to_string() || found.first[0] == "MUG-001", "{found:?}");
        assert!(!audit.at_rest() || kind != Kind::Missing, "{what} and at rest");
        let table = audit.table(Dropped::default()).join("\n");
        assert!(table.contains(what) && table.contains(&found.first[0]), "{table}");
    }
    let audit = books.audit(&[good, victim]).await?;
    assert!(audit.findings.is_empty(), "the books did not survive the test: {audit:?}");
    Ok(())
}

/// As if that order's event had been erased, and the memory of it, after their time.
const RETENTION: &str = "
    update orders.orders set placed_at = now() - interval '40 days' where id = ORDER;
    update inventory.reservations set reserved_at = now() - interval '40 days' where order_id = ORDER;
    update billing.invoices set issued_at = now() - interval '40 days' where order_id = ORDER;
    delete from inventory.processed_events where event_id in
        (select event_id from orders.outbox where aggregate_id = ORDER);
    delete from billing.processed_events where event_id in
        (select event_id from orders.outbox where aggregate_id = ORDER);
    delete from orders.outbox where aggregate_id = ORDER;
    update orders.outbox_retention set erased_before = now() - interval '7 days';
    insert into inventory.inbox_retention values ('inventory', now() - interval '30 days');
    insert into billing.inbox_retention values ('billing', now() - interval '30 days')";

#[tokio::test]
async fn what_retention_erased_is_not_missing_and_everything_else_still_is() -> Result<()> {
    let mut books = books().await?;
    let old = books.order().await?;
    let young = books.order().await?;
    books.run(&RETENTION.replace("ORDER", &format!("'{old}'"))).await?;
    let audit = books.audit(&[old, young]).await?;
    assert!(audit.findings.is_empty() && audit.at_rest(), "{audit:?}");

    // The same wrongs as ever in what is young; and in what is old, all that does not need the event itself.
    let needs_the_event = [
        "order without its event",
        "order with two creation events",
        "event without its order",
        "reservation by an event that was never written",
        "invoice by an event that was never written",
        "reservation without a record of its event",
        "invoice without a record of its event",
    ];
    for (victim, is_old) in [(young, false), (old, true)] {
        for (planted, kind, place, what) in WRONGS {
            if is_old && needs_the_event.contains(&what) {
                continue;
            }
            let mut transaction = books.admin.begin().await?;
            let sql = planted.replace("CANCELLED", CANCELLED).replace("ORDER", &format!("'{victim}'"));
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *transaction).await.context(planted)?;
            let json: String =
                sqlx::query_scalar(AssertSqlSafe(query(&[old, young]))).fetch_one(&mut *transaction).await?;
            transaction.rollback().await?;
            let audit = Audit::parse(&json)?;
            let found = |f: &&demo::audit::Finding| (f.kind, &*f.place, &*f.what) == (kind, place, what);
            let found = audit.findings.iter().find(found);
            found.with_context(|| format!("not found: {what} (old: {is_old}), in {:#?}", audit.findings))?;
        }
    }
    Ok(())
}

#[test]
fn the_ledger_keeps_each_acknowledgement_and_forgives_a_half_written_last_line() -> Result<()> {
    let path = std::env::temp_dir().join(format!("ledger-{}.jsonl", Uuid::new_v4()));
    assert!(ledger::read(&path)?.is_empty(), "no file is no promise");
    let ids = [Uuid::new_v4(), Uuid::new_v4()];
    let log = Ledger::open(&path)?;
    log.note(ids[0], SystemTime::now());
    log.note(ids[1], SystemTime::now());
    log.note(ids[1], SystemTime::now());
    assert_eq!(log.noted(), 3);
    drop(log);

    let again = Ledger::open(&path)?;
    assert_eq!(again.noted(), 0, "it counts since it was opened");
    assert_eq!(again.acknowledged()?.len(), 2, "and remembers everything, once");
    let text = std::fs::read_to_string(&path)?;
    std::fs::write(&path, format!("{text}{{\"id\":\"0190"))?;
    assert_eq!(ledger::read(&path)?.len(), 2);
    std::fs::write(&path, format!("{{\"id\":\"0190\n{text}"))?;
    assert!(ledger::read(&path).is_err(), "a torn line in the middle is damage, and said to be");
    std::fs::remove_file(&path)?;
    Ok(())
}

/// No effects of an order that was cancelled at both services before its creation got there.
const OVERTAKEN: &str = "
    CANCELLED
    delete from inventory.reservations where order_id = ORDER;
    delete from billing.invoices where order_id = ORDER;
    delete from billing.credit_notes where order_id = ORDER;
    update inventory.cancelled_orders set came_first = true where order_id = ORDER;
    update billing.cancelled_orders set came_first = true where order_id = ORDER;";

/// A letter at each service for the order's creation.
const LETTERS: &str = "
    insert into inventory.dead_letters (queue, event_id, event_type, subject, reason, detail, headers, routing_key, body)
        select 'inventory.events', event_id, event_type, aggregate_id, 'permanent', 'odd', '{}', 'order.created', ''
        from orders.outbox where aggregate_id = ORDER and event_type = 'OrderCreated';
    insert into billing.dead_letters (queue, event_id, event_type, subject, reason, detail, headers, routing_key, body)
        select 'billing.events', event_id, event_type, aggregate_id, 'permanent', 'odd', '{}', 'order.created', ''
        from orders.outbox where aggregate_id = ORDER and event_type = 'OrderCreated';";

#[tokio::test]
async fn a_creation_that_an_operator_had_in_hand_may_be_overtaken_by_its_cancellation_and_no_other()
-> Result<()> {
    let settle = "update inventory.dead_letters set resolved_at = now(), resolution = 'replayed';
                  update billing.dead_letters set resolved_at = now(), resolution = 'replayed';";
    let discard = "insert into orders.outbox_discarded select outbox.*, now(), 'given up' from orders.outbox
                       where aggregate_id = ORDER and event_type = 'OrderCreated';
                   delete from orders.outbox where aggregate_id = ORDER and event_type = 'OrderCreated';";
    let erase = "update orders.outbox_retention set erased_before = clock_timestamp();
                 delete from orders.outbox where aggregate_id = ORDER;";
    let cases = [
        ("set aside, overtaken, and still waiting", format!("{OVERTAKEN} {LETTERS}"), true),
        ("replayed afterwards, which rightly does nothing", format!("{OVERTAKEN} {LETTERS} {settle}"), true),
        ("given up in the outbox", format!("{OVERTAKEN} {discard}"), true),
        ("set aside, and its events erased since", format!("{OVERTAKEN} {LETTERS} {erase}"), true),
        ("nobody had it in hand", OVERTAKEN.to_owned(), false),
        ("nobody had it in hand, and its events are erased", format!("{OVERTAKEN} {erase}"), false),
    ];
    for (name, sql, is_fine) in cases {
        let mut books = books().await?;
        let (good, victim) = (books.order().await?, books.order().await?);
        let sql = sql.replace("CANCELLED", CANCELLED).replace("ORDER", &format!("'{victim}'"));
        books.run(&sql).await.context(name)?;
        let audit = books.audit(&[good, victim]).await?;
        assert_eq!(audit.findings.is_empty(), is_fine, "{name}: {:#?}", audit.findings);
        if !is_fine {
            let disorder = ["inventory", "billing"].map(|place| audit.count(Kind::Disorder, place));
            assert_eq!(disorder, [1, 1], "{name}");
        }
    }
    Ok(())
}
