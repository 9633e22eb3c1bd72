//! Another program that writes orders, or sends events.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

/// The body of an event that no service has written.
pub(crate) fn foreign_event(id: &str, subject: &str, event_type: &str, data: &Value) -> String {
    json!({
        "specversion": "1.0", "id": id, "source": "/inventory", "type": event_type, "subject": subject,
        "time": "2026-01-01T00:00:00Z", "datacontenttype": "application/json",
        "dataschema": format!("urn:shop:{event_type}:1"), "sequence": 1, "data": data,
    })
    .to_string()
}

/// Copies an order with its event, as another writer would, in a transaction that the caller commits. Wakes no relay.
pub(crate) async fn copy_order(connection: &mut PgConnection, original: Uuid) -> Result<Uuid> {
    let (copy, event) = (Uuid::now_v7(), Uuid::now_v7());
    for sql in [
        "insert into orders (id, customer_id, status, total_amount, currency)
         select $2, customer_id, 'pending', total_amount, currency from orders where id = $1 and $3::uuid is not null",
        "insert into order_lines (order_id, line_number, sku, quantity, unit_price)
         select $2, line_number, sku, quantity, unit_price from order_lines
         where order_id = $1 and $3::uuid is not null",
        "insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                             payload, headers, lane)
         select $3, aggregate_type, $2, aggregate_version, event_type, schema_version,
                replace(replace(payload::text, event_id::text, $3::text), $1::text, $2::text)::json, headers, lane
         from outbox where aggregate_id = $1 and aggregate_version = 1",
    ] {
        let done = sqlx::query(sql).bind(original).bind(copy).bind(event).execute(&mut *connection).await?;
        ensure!(done.rows_affected() > 0, "there is nothing to copy of order {original}");
    }
    Ok(copy)
}
