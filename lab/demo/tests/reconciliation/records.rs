//! The tables of the services without the services, with the rows that an order has after each part of its processing.

use anyhow::{Context as _, Result};
use demo::reconciliation::{Reconciliation, query};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use testbed::{TestDatabase, database};
use uuid::Uuid;

/// An order of two lines is accepted, and its event is published.
pub(crate) const PLACED: &str = "
    insert into orders.orders (id, customer_id, status, total_amount, currency)
        values (ORDER, gen_random_uuid(), 'pending', 2700, 'EUR');
    insert into orders.order_lines (order_id, line_number, sku, quantity, unit_price)
        values (ORDER, 1, 'TEA-001', 2, 625), (ORDER, 2, 'MUG-001', 1, 1450);
    insert into orders.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                               payload, lane, published_at)
        values (CREATED, 'order', ORDER, 1, 'OrderCreated', 1, '{}', 0, now());";

/// Inventory has reserved the stock, and the order service has applied the answer.
pub(crate) const RESERVED: &str = "
    insert into inventory.processed_events (consumer, event_id, event_type) values ('inventory', CREATED, 'OrderCreated');
    insert into inventory.reservations (id, order_id, event_id, state) values (RESERVATION, ORDER, CREATED, 'held');
    insert into inventory.reservation_lines (reservation_id, line_number, sku, quantity)
        values (RESERVATION, 1, 'TEA-001', 2), (RESERVATION, 2, 'MUG-001', 1);
    update inventory.stock set reserved = reserved + 2 where sku = 'TEA-001';
    update inventory.stock set reserved = reserved + 1 where sku = 'MUG-001';
    insert into inventory.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                                  payload, lane, published_at)
        values (STOCK_EVENT, 'reservation', RESERVATION, 1, 'StockReserved', 1, '{}', 0, now());
    insert into orders.processed_events (consumer, event_id, event_type) values ('orders', STOCK_EVENT, 'StockReserved');
    insert into orders.answers (order_id, event_id, event_type, source, occurred_at)
        values (ORDER, STOCK_EVENT, 'StockReserved', '/inventory', now());
    update orders.orders set status = 'reserved' where id = ORDER;";

/// The provider has charged, billing has answered, and the order is confirmed.
pub(crate) const CONFIRMED: &str = "
    insert into billing.processed_events (consumer, event_id, event_type) values ('billing', CREATED, 'OrderCreated');
    insert into provider.charges (id, reference, customer_id, amount, currency, status)
        values (CHARGE, ORDER, gen_random_uuid(), 2700, 'EUR', 'captured');
    insert into billing.payments (id, order_id, customer_id, amount, currency, event_id, traceparent, state, charge_id,
                                  answered_at)
        values (PAYMENT, ORDER, gen_random_uuid(), 2700, 'EUR', CREATED, '', 'captured', CHARGE, now());
    insert into billing.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                                payload, lane, published_at)
        values (PAYMENT_EVENT, 'payment', PAYMENT, 1, 'PaymentCaptured', 1, '{}', 0, now());
    insert into orders.processed_events (consumer, event_id, event_type)
        values ('orders', PAYMENT_EVENT, 'PaymentCaptured');
    insert into orders.answers (order_id, event_id, event_type, source, occurred_at)
        values (ORDER, PAYMENT_EVENT, 'PaymentCaptured', '/billing', now());
    update orders.orders set status = 'confirmed', version = 2, confirmed_at = now() where id = ORDER;
    insert into orders.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                               payload, lane, published_at)
        values (CONFIRMATION, 'order', ORDER, 2, 'OrderConfirmed', 1, '{}', 0, now());";

/// The order is cancelled, and both services know.
pub(crate) const ORDER_CANCELLED: &str = "
    update orders.orders set status = 'cancelled', version = 3, cancelled_at = now(), cancelled_for = 'customer'
        where id = ORDER;
    insert into orders.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                               payload, lane, published_at)
        values (CANCELLATION, 'order', ORDER, 3, 'OrderCancelled', 2, '{}', 0, now());
    insert into inventory.cancelled_orders (order_id, event_id, came_first) values (ORDER, CANCELLATION, false);
    insert into billing.cancelled_orders (order_id, event_id, came_first) values (ORDER, CANCELLATION, false);";

/// A confirmed order is cancelled, the stock is released, and the charge is refunded.
pub(crate) const COMPENSATED: &str = "
    ORDER_CANCELLED
    update inventory.reservations set state = 'released', released_by = CANCELLATION, released_at = now()
        where id = RESERVATION;
    update inventory.stock set reserved = reserved - 2 where sku = 'TEA-001';
    update inventory.stock set reserved = reserved - 1 where sku = 'MUG-001';
    update provider.charges set refunded = 2700 where id = CHARGE;
    insert into provider.refunds (id, charge_id, amount) values (REFUND, CHARGE, 2700);
    update billing.payments set state = 'refunded', cancelled_by = CANCELLATION, refund_id = REFUND, refunded_at = now()
        where id = PAYMENT;
    insert into inventory.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                                  payload, lane, published_at)
        values (RELEASE_EVENT, 'reservation', RESERVATION, 2, 'StockReleased', 1, '{}', 0, now());
    insert into billing.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                                payload, lane, published_at)
        values (REFUND_EVENT, 'payment', PAYMENT, 2, 'PaymentRefunded', 1, '{}', 0, now());
    insert into orders.processed_events (consumer, event_id, event_type)
        values ('orders', RELEASE_EVENT, 'StockReleased'), ('orders', REFUND_EVENT, 'PaymentRefunded');
    insert into orders.answers (order_id, event_id, event_type, source, occurred_at)
        values (ORDER, RELEASE_EVENT, 'StockReleased', '/inventory', now()),
               (ORDER, REFUND_EVENT, 'PaymentRefunded', '/billing', now());";

/// The words above that are replaced by ids. Longer ones are first: `REFUND` is a part of `REFUND_EVENT`.
const IDS: [&str; 13] = [
    "STOCK_EVENT",
    "PAYMENT_EVENT",
    "RELEASE_EVENT",
    "REFUND_EVENT",
    "CONFIRMATION",
    "CANCELLATION",
    "RESERVATION",
    "PAYMENT",
    "CREATED",
    "CHARGE",
    "REFUND",
    "LETTER",
    "ORDER",
];

/// Replaces the words in statements about one order: by other statements, and by ids, always the same for one order.
pub(crate) fn about(order: Uuid, sql: &str) -> String {
    let whole = sql.replace("COMPENSATED", COMPENSATED).replace("ORDER_CANCELLED", ORDER_CANCELLED);
    (0..).zip(IDS).fold(whole, |sql, (number, word)| {
        let id = if word == "ORDER" { order } else { Uuid::from_u128(order.as_u128() ^ (number + 1)) };
        sql.replace(word, &format!("'{id}'::uuid"))
    })
}

/// The tables of all services and of the payment provider.
pub(crate) struct Records {
    pub(crate) database: TestDatabase,
    pub(crate) admin: PgConnection,
}

impl Records {
    /// Creates empty tables.
    pub(crate) async fn new() -> Result<Self> {
        let database = database().await?;
        testbed::migrate(database.urls()).await?;
        let admin = PgConnection::connect(&database.admin_url()).await?;
        Ok(Self { database, admin })
    }

    /// Inserts an order that is confirmed.
    pub(crate) async fn order(&mut self) -> Result<Uuid> {
        self.order_that(&format!("{PLACED}{RESERVED}{CONFIRMED}")).await
    }

    /// Inserts an order with these statements.
    pub(crate) async fn order_that(&mut self, sql: &str) -> Result<Uuid> {
        let order = Uuid::now_v7();
        self.run(&about(order, sql)).await?;
        Ok(order)
    }

    pub(crate) async fn run(&mut self, sql: &str) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(&mut self.admin)
            .await
            .context(sql.to_owned())?;
        Ok(())
    }

    /// Runs the query as the auditor, because it must not need more rights than the auditor has.
    pub(crate) async fn reconcile(&self, acknowledged: &[Uuid]) -> Result<Reconciliation> {
        let mut auditor = PgConnection::connect(&self.database.url("auditor")).await?;
        let json: String =
            sqlx::query_scalar(AssertSqlSafe(query(acknowledged, None))).fetch_one(&mut auditor).await?;
        Reconciliation::parse(&json)
    }

    /// Runs the query after these statements about an order, and rolls them back.
    pub(crate) async fn reconcile_after(
        &mut self,
        order: Uuid,
        sql: &str,
        acknowledged: &[Uuid],
    ) -> Result<Reconciliation> {
        let mut transaction = self.admin.begin().await?;
        let sql = about(order, sql);
        sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(&mut *transaction).await.context(sql)?;
        let json: String =
            sqlx::query_scalar(AssertSqlSafe(query(acknowledged, None))).fetch_one(&mut *transaction).await?;
        transaction.rollback().await?;
        Reconciliation::parse(&json)
    }
}
