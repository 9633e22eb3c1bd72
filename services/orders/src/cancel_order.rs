//! `POST /orders/{id}/cancellation`: cancels an order. The services that acted for it undo what they did.

use axum::{
    Json,
    extract::{Extension, Path, State, rejection::PathRejection},
};
use database::Pool;
use events::{Cause, NewEvent, OrderCancelled, TraceContext};
use messaging::crash_points::crash_point;
use serde::Serialize;
use service::problem::Problem;
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::{Uuid, fmt::Hyphenated};

use crate::{
    app_state::AppState,
    order_state::{OrderState, Trigger},
    problems,
};

/// The answer to a cancellation.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cancelled {
    id: Uuid,
    /// Always `cancelled`.
    #[schema(pattern = "^cancelled$")]
    status: &'static str,
    /// When it was cancelled first.
    #[serde(with = "time::serde::rfc3339")]
    cancelled_at: OffsetDateTime,
}

/// How often the write is tried: of two clients that cancel one order at the same moment, one finds it changed.
const MAX_TRIES: usize = 3;

#[utoipa::path(
    post, path = "/orders/{id}/cancellation", tag = "orders", operation_id = "cancelOrder",
    summary = "Cancels an order",
    description = "No body. The order and its `OrderCancelled` event are written together, and the services that acted \
                   for the order undo what they did. A repeated call gets the same answer and changes nothing.",
    params(("id" = Uuid, Path, description = "The order's id.")),
    responses((status = 200, description = "The order is cancelled.", body = Cancelled)),
)]
pub(crate) async fn cancel_order(
    State(state): State<AppState>,
    Extension(trace): Extension<TraceContext>,
    id: Result<Path<Hyphenated>, PathRejection>,
) -> Result<Json<Cancelled>, Problem> {
    let id = id.map_err(|_| problems::no_such_order())?.into_uuid();
    for _ in 0..MAX_TRIES {
        let order = sqlx::query!("select version, cancelled_at from orders where id = $1", id)
            .fetch_optional(&state.pool)
            .await?
            .ok_or_else(problems::no_such_order)?;
        if let Some(cancelled_at) = order.cancelled_at {
            // Only read, like a repeated answer to an order.
            state.pool.await_replication().await?;
            return Ok(Json(Cancelled { id, status: "cancelled", cancelled_at }));
        }
        let (cause, detail) = (Cause::Customer, "cancelled by the customer".into());
        let body = OrderCancelled { order_id: id, cause, detail };
        let from = OrderState::before(Trigger::CustomerCancels);
        if let Some(cancelled_at) = write(&state.pool, order.version, &trace, &from, &body).await? {
            crash_point("order-written");
            state.wake.after_commit();
            tracing::info!(order_id = %id, "order cancelled");
            return Ok(Json(Cancelled { id, status: "cancelled", cancelled_at }));
        }
    }
    Err(Problem::contended())
}

/// Updates the order and inserts the event in one statement, like [`place_order`](crate::place_order). `None` when another
/// event of the order was written since `version` was read, or when the order is in none of the states `from`.
///
/// The update comes first, and the event is inserted from its result: the transaction that holds the order's row lock
/// draws the next `seq`. That is why `seq` follows the order of commits within an order.
pub(crate) async fn write(
    pool: &Pool,
    version: i32,
    trace: &TraceContext,
    from: &[String],
    body: &OrderCancelled,
) -> Result<Option<OffsetDateTime>, sqlx::Error> {
    let OrderCancelled { order_id, cause, .. } = *body;
    let event = NewEvent::of(order_id, version + 1, trace, body)
        .map_err(|error| sqlx::Error::Encode(error.into()))?;
    sqlx::query_scalar!(
        r#"with moved as (
             update orders set status = 'cancelled', version = version + 1, cancelled_at = clock_timestamp(),
                               cancelled_for = $10
             where id = $1 and version = $2 and status = any($11)
             returning id, version, cancelled_at
         ), event as (
             insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                                 schema_version, payload, headers, lane)
             select $3, $4, moved.id, moved.version, $5, $6, $7::text::json, $8, $9
             from moved
         )
         select cancelled_at as "cancelled_at!" from moved"#,
        order_id,
        version,
        event.event_id,
        event.aggregate_type,
        event.event_type,
        event.schema_version,
        event.payload,
        event.headers,
        event.lane,
        cause.name(),
        from,
    )
    .fetch_optional(pool.for_writing()?)
    .await
}
