//! An order is taken back: the second thing that can happen to it, and the second event of its life.

use axum::{
    Json,
    extract::{Extension, Path, State, rejection::PathRejection},
};
use events::{Draft, OrderCancelled, TraceContext};
use faults::Point;
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Shop, problem::Problem};

/// The answer to a cancellation.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cancelled {
    id: Uuid,
    status: &'static str,
    #[serde(with = "time::serde::rfc3339")]
    cancelled_at: OffsetDateTime,
}

/// Two clients that cancel one order at the same moment: one of them finds it moved on, and looks again.
const TRIES: usize = 3;

/// `POST /orders/{id}/cancellation`: takes an order back. Doing it again gives the same answer and changes nothing.
pub(crate) async fn cancel_order(
    State(shop): State<Shop>,
    Extension(trace): Extension<TraceContext>,
    id: Result<Path<Uuid>, PathRejection>,
) -> Result<Json<Cancelled>, Problem> {
    let Path(id) = id.map_err(|_| Problem::no_such_order())?;
    for _ in 0..TRIES {
        let order = sqlx::query!("select version, cancelled_at from orders where id = $1", id)
            .fetch_optional(&shop.pool)
            .await?
            .ok_or_else(Problem::no_such_order)?;
        if let Some(cancelled_at) = order.cancelled_at {
            return Ok(Json(Cancelled { id, status: "cancelled", cancelled_at }));
        }
        if let Some(cancelled_at) = write(&shop, id, order.version, &trace).await? {
            faults::reach(Point::OrderWritten);
            shop.wake.after_commit();
            tracing::info!(order_id = %id, "order cancelled");
            return Ok(Json(Cancelled { id, status: "cancelled", cancelled_at }));
        }
    }
    Err(Problem::contended())
}

/// Moves the order and writes the event, in one statement, like [`place_order`](crate::place_order). `None` when the
/// order has changed since `version` was read.
///
/// The update comes first, and the event is written from its result: whoever holds the order's row lock draws the next
/// `seq`, and that is why `seq` follows the order of commits within an order.
async fn write(
    shop: &Shop,
    id: Uuid,
    version: i32,
    trace: &TraceContext,
) -> Result<Option<OffsetDateTime>, Problem> {
    let body = OrderCancelled { order_id: id, reason: "the customer has changed their mind".into() };
    let kind = (OrderCancelled::TYPE, OrderCancelled::VERSION);
    let event =
        Draft::new("/orders", ("order", id, version + 1), kind, trace, &body).map_err(Problem::internal)?;
    sqlx::query_scalar!(
        r#"with moved as (
             update orders set status = 'cancelled', version = version + 1, cancelled_at = clock_timestamp()
             where id = $1 and version = $2 and status = 'pending'
             returning id, version, cancelled_at
         ), event as (
             insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                                 schema_version, payload, headers, lane)
             select $3, $4, moved.id, moved.version, $5, $6, $7::text::json, $8, $9
             from moved
         )
         select cancelled_at as "cancelled_at!" from moved"#,
        id,
        version,
        event.event_id,
        event.aggregate_type,
        event.event_type,
        event.schema_version,
        event.payload,
        event.headers,
        event.lane,
    )
    .fetch_optional(&shop.pool)
    .await
    .map_err(Problem::from)
}
