//! The order and its event in one transaction, begun on a connection of sqlx's own pool.
//!
//! A handler's future is dropped when its client hangs up. If that happens while the answer to `BEGIN` is on its way, sqlx
//! does not know of the transaction, and the connection returns to the pool inside it. The next request on that connection
//! writes an order with one statement: the statement succeeds, the order is acknowledged, and it is rolled back with the
//! transaction that the first request has left open.
//!
//! That takes a service in which some handlers begin transactions and others, on the same connections, do not. So orders of
//! one line are written in one statement, like the product's.

use events::{Line, NewEvent, OrderCreated};
use sqlx::PgPool;

use super::{WriteState, created_event, insert_order};

pub(crate) async fn write(state: &WriteState, order: &OrderCreated) -> anyhow::Result<()> {
    let event = created_event(order)?;
    if let [line] = order.lines.as_slice() {
        write_in_one_statement(&state.unguarded, order, line, &event).await?;
    } else {
        // The product's pool closes the connection of an operation that was given up.
        let mut transaction = state.unguarded.begin().await?;
        insert_order(&mut transaction, order).await?;
        outbox::append(&mut transaction, &[event]).await?;
        transaction.commit().await?;
    }
    state.wake.after_commit();
    Ok(())
}

async fn write_in_one_statement(
    pool: &PgPool,
    order: &OrderCreated,
    line: &Line,
    event: &NewEvent,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "with placed as (
             insert into orders (id, customer_id, status, total_amount, currency)
             values ($1, $2, 'pending', $3, $4)
             returning id
         ), line as (
             insert into order_lines (order_id, line_number, sku, quantity, unit_price)
             select placed.id, 1, $5, $6, $7 from placed
         )
         insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                             schema_version, payload, headers, lane)
         select $8, $9, placed.id, $10, $11, $12, $13::text::json, $14, $15 from placed",
    )
    .bind(order.order_id)
    .bind(order.customer_id)
    .bind(order.total.amount)
    .bind(&order.total.currency)
    .bind(&line.sku)
    .bind(line.quantity)
    .bind(line.unit_price)
    .bind(event.event_id)
    .bind(event.aggregate_type)
    .bind(event.aggregate_version)
    .bind(event.event_type)
    .bind(event.schema_version)
    .bind(&event.payload)
    .bind(&event.headers)
    .bind(event.lane)
    .execute(pool)
    .await?;
    Ok(())
}
