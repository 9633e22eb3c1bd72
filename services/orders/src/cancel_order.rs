//! An order is taken back, by whoever placed it: what was done for it is undone by whoever did it.

use axum::{
    Json,
    extract::{Extension, Path, State as Shared, rejection::PathRejection},
};
use events::{Cause, Draft, OrderCancelled, TraceContext};
use faults::Point;
use serde::Serialize;
use sqlx::PgPool;
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    Shop,
    order_state::{Happening, State},
    problem::Problem,
    refusals,
};

/// The answer to a cancellation.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cancelled {
    /// The order.
    id: Uuid,
    /// What has become of it: `cancelled`, for good.
    #[schema(pattern = "^cancelled$")]
    status: &'static str,
    /// When it was taken back, the first time.
    #[serde(with = "time::serde::rfc3339")]
    cancelled_at: OffsetDateTime,
}

/// Two clients that cancel one order at the same moment: one of them finds it moved on, and looks again.
const TRIES: usize = 3;

/// `POST /orders/{id}/cancellation`: takes an order back. Doing it again gives the same answer and changes nothing.
#[utoipa::path(
    post, path = "/orders/{id}/cancellation", tag = "orders", operation_id = "cancelOrder",
    summary = "Takes an order back",
    description = "No body. The order and its `OrderCancelled` event are written together; whatever was done for the \
                   order is undone by whoever did it. Doing it again gives the same answer and changes nothing.",
    params(("id" = Uuid, Path, description = "The order.")),
    responses((status = 200, description = "It is off.", body = Cancelled), refusals::OneOrder),
)]
pub(crate) async fn cancel_order(
    Shared(shop): Shared<Shop>,
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
        let cancellation = Cancellation {
            from: State::before(Happening::CustomerCancels),
            cause: Cause::Customer,
            detail: "the customer has changed their mind".into(),
        };
        if let Some(cancelled_at) = write(&shop.pool, id, order.version, &trace, cancellation).await? {
            faults::reach(Point::OrderWritten);
            shop.wake.after_commit();
            tracing::info!(order_id = %id, "order cancelled");
            return Ok(Json(Cancelled { id, status: "cancelled", cancelled_at }));
        }
    }
    Err(Problem::contended())
}

/// A cancellation that is about to be written.
pub(crate) struct Cancellation {
    /// Where the order has to be, still, for this to happen to it.
    pub(crate) from: Vec<String>,
    /// Why: for programs, and for people.
    pub(crate) cause: Cause,
    pub(crate) detail: String,
}

/// Moves the order and writes the event, in one statement, like [`place_order`](crate::place_order). `None` when
/// an event of the order has been written since `version` was read, or when it cannot be cancelled any more.
///
/// The update comes first, and the event is written from its result: whoever holds the order's row lock draws the next
/// `seq`, and that is why `seq` follows the order of commits within an order.
pub(crate) async fn write(
    pool: &PgPool,
    id: Uuid,
    version: i32,
    trace: &TraceContext,
    cancellation: Cancellation,
) -> Result<Option<OffsetDateTime>, Problem> {
    let Cancellation { from, cause, detail } = cancellation;
    let body = OrderCancelled { order_id: id, cause, detail };
    let event = Draft::of("/orders", ("order", id, version + 1), trace, &body).map_err(Problem::internal)?;
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
        id,
        version,
        event.event_id,
        event.aggregate_type,
        event.event_type,
        event.schema_version,
        event.payload,
        event.headers,
        event.lane,
        cause.name(),
        &from,
    )
    .fetch_optional(pool)
    .await
    .map_err(Problem::from)
}
