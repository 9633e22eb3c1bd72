//! Events that wait: rows for the order service's outbox, and the same as messages.

use anyhow::{Context as _, ensure};
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use crate::bare_publisher::Message;

/// Makes a UUIDv7, as the service does. A random id in its place would scatter the inserts over the whole index.
const UUID_V7: &str = "(lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') || '7' \
     || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid";

/// The statement that adds `$2` orders like order `$1`, each with an unpublished event like its first, with new ids, over all
/// lanes.
///
/// The orders exist because the answers to the events refer to them. There is one event per order, so every lane is
/// right and no order among them matters.
pub(crate) fn statement() -> String {
    format!(
        "with fresh as materialized (
        select number, {UUID_V7} as event_id, {UUID_V7} as order_id
        from generate_series(1, $2) as number
    ), placed as (
        insert into orders (id, customer_id, status, total_amount, currency)
        select fresh.order_id, template.customer_id, 'pending', template.total_amount, template.currency
        from fresh, orders template where template.id = $1
    ), lines as (
        insert into order_lines (order_id, line_number, sku, quantity, unit_price)
        select fresh.order_id, line.line_number, line.sku, line.quantity, line.unit_price
        from fresh, order_lines line where line.order_id = $1
    )
    insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                        payload, headers, lane)
    select fresh.event_id, template.aggregate_type, fresh.order_id, template.aggregate_version,
           template.event_type, template.schema_version,
           replace(replace(template.payload::text, template.event_id::text, fresh.event_id::text),
                   template.aggregate_id::text, fresh.order_id::text)::json,
           template.headers, fresh.number % 16
    from outbox template, fresh
    where template.aggregate_id = $1 and template.aggregate_version = 1"
    )
}

/// Adds `events` unpublished events to the outbox, each like the first event of order `template`, and returns them as
/// messages. `database` has the order service's login.
pub(crate) async fn fill(
    database: &mut PgConnection,
    template: Uuid,
    events: u32,
) -> anyhow::Result<Vec<Message>> {
    let fill = sqlx::query(AssertSqlSafe(statement())).bind(template).bind(i64::from(events));
    fill.execute(&mut *database).await.context("failed to fill the outbox")?;
    // Otherwise autovacuum starts because of the new rows in the middle of a measurement.
    sqlx::query("vacuum analyze outbox").execute(&mut *database).await?;
    let messages = messages(database, "published_at is null", events).await?;
    ensure!(messages.len() == usize::try_from(events)?, "failed to fill the outbox with {events} events");
    Ok(messages)
}

/// Reads at most `count` events of the outbox for which `condition` holds, as messages.
pub(crate) async fn messages(
    database: &mut PgConnection,
    condition: &str,
    count: u32,
) -> anyhow::Result<Vec<Message>> {
    let statement =
        format!("select event_id::text, payload::text from outbox where {condition} limit {count}");
    let rows: Vec<(String, String)> = sqlx::query_as(AssertSqlSafe(statement)).fetch_all(database).await?;
    Ok(rows.into_iter().map(|(id, body)| Message { id, body: body.into_bytes() }).collect())
}

/// Cancels the orders that nobody answers: while they are open the order service counts them every few seconds.
pub(crate) async fn cancel_orders(database: &mut PgConnection) -> anyhow::Result<()> {
    let cancel = "update orders set status = 'cancelled', cancelled_at = clock_timestamp(), cancelled_for = 'benchmark'
                  where status = 'pending'";
    sqlx::query(cancel).execute(&mut *database).await.context("failed to cancel the orders of a backlog")?;
    // Otherwise autovacuum does it in the middle of the next measurement.
    sqlx::query("vacuum analyze orders").execute(database).await?;
    Ok(())
}
