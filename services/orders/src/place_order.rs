//! Where the promise is made: the order and its event, in one statement.

use axum::{
    Json,
    extract::{Extension, State},
    http::{HeaderName, StatusCode, header::LOCATION},
    response::IntoResponse,
};
use events::{Draft, Money, OrderCreated, TraceContext};
use faults::{Point, Sabotage};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Shop,
    catalogue::CURRENCY,
    order_request::{OrderRequest, PricedOrder},
    problem::{Problem, ProblemJson},
    read_orders::OrderView,
};

/// `POST /orders`: accepts an order. Whoever gets a 201 can rely on it: the order is on disk, and so is the event that
/// will carry it to the other services, whatever happens to this process, the broker, or them.
pub(crate) async fn place_order(
    State(shop): State<Shop>,
    Extension(trace): Extension<TraceContext>,
    ProblemJson(request): ProblemJson<OrderRequest>,
) -> Result<impl IntoResponse, Problem> {
    let catalogue = shop.catalogue().ok_or_else(Problem::starting)?;
    let order = request.price(catalogue)?;
    let id = Uuid::now_v7();
    faults::reach(Point::OrderUnwritten);
    if faults::sabotaged(Sabotage::WakeBeforeCommit) {
        shop.wake.after_commit();
    }
    let placed_at = write(&shop, id, &order, &trace).await?;

    faults::reach(Point::OrderWritten);
    // After the commit, never before: the relay would look, see nothing yet, and go to sleep again. If this process
    // dies right here, the relay's poll finds the event.
    if !faults::sabotaged(Sabotage::WakeBeforeCommit) {
        shop.wake.after_commit();
    }
    tracing::info!(order_id = %id, total = order.total, "order placed");

    let location: [(HeaderName, String); 1] = [(LOCATION, format!("/orders/{id}"))];
    let view = OrderView::placed(id, order, placed_at);
    Ok((StatusCode::CREATED, location, Json(view)))
}

/// Writes the order, its lines and its event. All of it or nothing.
///
/// One statement, on purpose. It is atomic by itself; it is one round trip instead of five; and there is no `BEGIN`.
/// The last is not about speed: this future is dropped when the client hangs up or the time-out fires, and a `BEGIN`
/// that is dropped in the middle leaves a pooled connection inside a transaction. The next request's order would be
/// written into that, acknowledged, and rolled back later.
///
/// There is no `NOTIFY` here either: inside this statement it would make all commits of the database queue up.
async fn write(
    shop: &Shop,
    id: Uuid,
    order: &PricedOrder,
    trace: &TraceContext,
) -> Result<OffsetDateTime, Problem> {
    let body = OrderCreated {
        order_id: id,
        customer_id: order.customer_id,
        lines: order.lines.clone(),
        total: Money { amount: order.total, currency: CURRENCY.into() },
    };
    let kind = (OrderCreated::TYPE, OrderCreated::VERSION);
    let event = Draft::new("/orders", ("order", id, 1), kind, trace, &body).map_err(Problem::internal)?;
    let skus: Vec<_> = order.lines.iter().map(|line| line.sku.clone()).collect();
    let quantities: Vec<_> = order.lines.iter().map(|line| line.quantity).collect();
    let unit_prices: Vec<_> = order.lines.iter().map(|line| line.unit_price).collect();

    #[cfg(feature = "drill")]
    if let Some(written) = crate::sabotage::write(&shop.pool, id, order, &event).await {
        return written.map_err(Problem::from);
    }
    sqlx::query_scalar!(
        "with placed as (
             insert into orders (id, customer_id, status, total_amount, currency)
             values ($1, $2, 'pending', $3, $4)
             returning id, placed_at
         ), lines as (
             insert into order_lines (order_id, line_number, sku, quantity, unit_price)
             select placed.id, line.number, line.sku, line.quantity, line.unit_price
             from placed,
                  unnest($5::text[], $6::int[], $7::bigint[]) with ordinality
                      as line (sku, quantity, unit_price, number)
         ), event as (
             insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                                 schema_version, payload, headers, lane)
             select $8, $9, placed.id, $10, $11, $12, $13::text::json, $14, $15
             from placed
         )
         select placed_at from placed",
        id,
        order.customer_id,
        order.total,
        CURRENCY,
        &skus,
        &quantities,
        &unit_prices,
        event.event_id,
        event.aggregate_type,
        event.aggregate_version,
        event.event_type,
        event.schema_version,
        event.payload,
        event.headers,
        event.lane,
    )
    .fetch_one(&shop.pool)
    .await
    .map_err(Problem::from)
}
