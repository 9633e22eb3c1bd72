//! Where the promise is made: the order and its event, in one statement.

use axum::{
    Json,
    extract::{Extension, State},
    http::{HeaderName, HeaderValue, StatusCode, header::LOCATION},
    response::{IntoResponse, Response},
};
use events::{Draft, Money, OrderCreated, TraceContext};
use faults::{Point, Sabotage};
use runtime::database::is_locked;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Shop,
    catalogue::CURRENCY,
    idempotency_key::IdempotencyKey,
    order_request::{OrderRequest, PricedOrder},
    problem::{Problem, ProblemJson},
    read_orders::OrderView,
    refusals,
};

/// `POST /orders`: accepts an order. Whoever gets a 201 can rely on it: the order is on disk, and so is the event that
/// will carry it to the other services, whatever happens to this process, the broker, or them. Whoever gets no answer
/// asks again with the same `Idempotency-Key`, and gets it then.
#[utoipa::path(
    post, path = "/orders", tag = "orders", operation_id = "placeOrder",
    summary = "Places an order",
    description = "The order and its `OrderCreated` event are on disk when this is answered with 201. Whoever gets no \
                   answer, or a 5xx, asks again with the same `Idempotency-Key` and the same order: there is one order, \
                   and the answer is the first one.",
    params(IdempotencyKey),
    request_body(
        content = OrderRequest, description = "At most 64 KiB, not compressed.",
        example = json!({
            "customerId": "0190a1b2-0000-7000-8000-000000000001",
            "lines": [{ "sku": "TEA-001", "quantity": 2 }, { "sku": "MUG-001", "quantity": 1 }],
        }),
    ),
    responses(
        (
            status = 201, description = "The order is accepted, or was: then the answer is the first one.",
            body = OrderView,
            headers(
                ("Location" = String, description = "Where the order is, such as `/orders/{id}`."),
                ("Idempotent-Replayed" = bool, description = "`true` where the key was known; else absent."),
            ),
        ),
        refusals::Placing,
    ),
)]
pub(crate) async fn place_order(
    State(shop): State<Shop>,
    Extension(trace): Extension<TraceContext>,
    key: Option<IdempotencyKey>,
    ProblemJson(request): ProblemJson<OrderRequest>,
) -> Result<Response, Problem> {
    let catalogue = shop.catalogue().ok_or_else(Problem::starting)?;
    let order = request.price(catalogue)?;
    let id = Uuid::now_v7();
    faults::reach(Point::OrderUnwritten);
    if faults::sabotaged(Sabotage::WakeBeforeCommit) {
        shop.wake.after_commit();
    }
    let Some(placed_at) = write(&shop, id, key.as_ref(), &order, &trace).await? else {
        return again(&shop, key, &order).await;
    };

    faults::reach(Point::OrderWritten);
    // After the commit, never before: the relay would look, see nothing yet, and go to sleep again. If this process
    // dies right here, the relay's poll finds the event.
    if !faults::sabotaged(Sabotage::WakeBeforeCommit) {
        shop.wake.after_commit();
    }
    tracing::info!(order_id = %id, total = order.total, "order placed");

    Ok(created(OrderView::placed(id, order, placed_at)))
}

fn created(view: OrderView) -> Response {
    let location: [(HeaderName, String); 1] = [(LOCATION, format!("/orders/{}", view.id()))];
    (StatusCode::CREATED, location, Json(view)).into_response()
}

/// Says on a repeated answer that it is one. Not in the draft; the name that payment providers have made common.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The answer to a request whose key was known.
async fn again(shop: &Shop, key: Option<IdempotencyKey>, order: &PricedOrder) -> Result<Response, Problem> {
    let key = key.ok_or_else(|| Problem::internal("an order without a key was not written"))?;
    let view = key.first_answer(shop, order).await?.ok_or_else(Problem::key_in_use)?;
    tracing::info!(order_id = %view.id(), "order asked for again");
    let mut response = created(view);
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}

/// Writes the order, its lines, its key and its event. All of it or nothing. `None` when the key is known: then nothing.
///
/// One statement, on purpose. It is atomic by itself; it is one round trip instead of five; and there is no `BEGIN`.
/// The last is not about speed: this future is dropped when the client hangs up or the time-out fires, and a `BEGIN`
/// that is dropped in the middle leaves a pooled connection inside a transaction. The next request's order would be
/// written into that, acknowledged, and rolled back later.
///
/// There is no `NOTIFY` here either: inside this statement it would make all commits of the database queue up.
///
/// The key comes first, and everything else hangs on its row: of fifty requests with one key, forty-nine wait there until
/// the first has committed, and then find that there is nothing to do.
async fn write(
    shop: &Shop,
    id: Uuid,
    key: Option<&IdempotencyKey>,
    order: &PricedOrder,
    trace: &TraceContext,
) -> Result<Option<OffsetDateTime>, Problem> {
    let body = OrderCreated {
        order_id: id,
        customer_id: order.customer_id,
        lines: order.lines.clone(),
        total: Money { amount: order.total, currency: CURRENCY.into() },
    };
    let event = Draft::of("/orders", ("order", id, 1), trace, &body).map_err(Problem::internal)?;
    let skus: Vec<_> = order.lines.iter().map(|line| line.sku.clone()).collect();
    let quantities: Vec<_> = order.lines.iter().map(|line| line.quantity).collect();
    let unit_prices: Vec<_> = order.lines.iter().map(|line| line.unit_price).collect();

    #[cfg(feature = "drill")]
    if let Some(written) = crate::sabotage::write(&shop.pool, id, order, &event).await {
        return Ok(Some(written?));
    }
    sqlx::query_scalar!(
        "with key as (
             insert into idempotency_keys (key, order_id)
             select $16, $1 where $16::text is not null
             on conflict do nothing
             returning order_id
         ), placed as (
             insert into orders (id, customer_id, status, total_amount, currency)
             select $1, $2, 'pending', $3, $4
             where $16::text is null or exists (select from key)
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
        key.map(IdempotencyKey::as_str),
    )
    .fetch_optional(&shop.pool)
    .await
    // Somebody has held the key for two seconds. Without one it is a lock on a whole table: an administrator is at work.
    .map_err(|error| match key {
        Some(_) if is_locked(&error) => Problem::key_in_use(),
        None if is_locked(&error) => Problem::locked(),
        _ => error.into(),
    })
}
