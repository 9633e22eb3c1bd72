//! The order written as it should not be. In drill builds only.

use events::Draft;
use faults::{Point, Sabotage};
use sqlx::{PgConnection, PgPool};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{catalogue::CURRENCY, order_request::PricedOrder};

/// Writes the order in the sabotaged way, or returns `None` if that is not the sabotage of the day.
#[expect(clippy::disallowed_methods, reason = "beginning a transaction on this pool is the sabotage")]
pub(crate) async fn write(
    pool: &PgPool,
    id: Uuid,
    order: &PricedOrder,
    event: &Draft,
) -> Option<Result<OffsetDateTime, sqlx::Error>> {
    let write = async {
        let mut transaction = pool.begin().await?;
        let placed_at = write_order(&mut transaction, id, order).await?;
        if faults::sabotaged(Sabotage::DualWrite) {
            transaction.commit().await?;
            faults::reach(Point::OrderWritten);
            write_event(&mut *pool.acquire().await?, event).await?;
            return Ok(placed_at);
        }
        write_event(&mut transaction, event).await?;
        if faults::sabotaged(Sabotage::NotifyInTransaction) {
            let notify = sqlx::query("select pg_notify('outbox:' || current_schema(), 'look')");
            notify.execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
        Ok(placed_at)
    };
    let variants = [Sabotage::CancellableBegin, Sabotage::DualWrite, Sabotage::NotifyInTransaction];
    // A service in which some handlers begin transactions and others, on the same connections, do not: orders of one
    // line are written in one statement, as always.
    if faults::sabotaged(Sabotage::CancellableBegin) && order.lines.len() == 1 {
        return None;
    }
    if variants.into_iter().any(faults::sabotaged) { Some(write.await) } else { None }
}

async fn write_order(
    connection: &mut PgConnection,
    id: Uuid,
    order: &PricedOrder,
) -> Result<OffsetDateTime, sqlx::Error> {
    let placed_at = sqlx::query_scalar(
        "insert into orders (id, customer_id, status, total_amount, currency)
         values ($1, $2, 'pending', $3, $4) returning placed_at",
    )
    .bind(id)
    .bind(order.customer_id)
    .bind(order.total)
    .bind(CURRENCY)
    .fetch_one(&mut *connection)
    .await?;
    for (number, line) in (1_i16..).zip(&order.lines) {
        sqlx::query(
            "insert into order_lines (order_id, line_number, sku, quantity, unit_price) values ($1, $2, $3, $4, $5)",
        )
        .bind(id)
        .bind(number)
        .bind(&line.sku)
        .bind(line.quantity)
        .bind(line.unit_price)
        .execute(&mut *connection)
        .await?;
    }
    Ok(placed_at)
}

async fn write_event(connection: &mut PgConnection, event: &Draft) -> Result<(), sqlx::Error> {
    sqlx::query(
        "insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                             payload, headers, lane)
         values ($1, $2, $3, $4, $5, $6, $7::text::json, $8, $9)",
    )
    .bind(event.event_id)
    .bind(event.aggregate_type)
    .bind(event.aggregate_id)
    .bind(event.aggregate_version)
    .bind(event.event_type)
    .bind(event.schema_version)
    .bind(&event.payload)
    .bind(&event.headers)
    .bind(event.lane)
    .execute(connection)
    .await?;
    Ok(())
}
