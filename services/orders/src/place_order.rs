//! `POST /orders`: inserts the order and its `OrderCreated` event in one statement.

use std::collections::HashSet;

use axum::{
    Json,
    extract::{Extension, Request, State},
    http::{HeaderName, HeaderValue, StatusCode, header::LOCATION},
    response::{IntoResponse, Response},
};
use database::is_locked;
use events::{Line, Money, NewEvent, OrderCreated, TraceContext};
use messaging::crash_points::crash_point;
use serde::Deserialize;
use service::problem::{Problem, read_json};
use sqlx::PgExecutor;
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    app_state::{AppState, Prices},
    idempotency_key::IdempotencyKey,
    problems,
    read_orders::OrderView,
};

/// Accepts an order. After a 201 the order is on disk, and so is the event that will carry it to the other services,
/// whatever happens to this process, the broker, or them. A client that gets no answer retries with the same
/// `Idempotency-Key`, and gets the answer then.
#[utoipa::path(
    post, path = "/orders", tag = "orders", operation_id = "placeOrder",
    summary = "Places an order",
    description = "The order and its `OrderCreated` event are on disk when this is answered with 201. A client that gets no \
                   answer, or a 5xx, retries with the same `Idempotency-Key` and the same order: there is one order, and \
                   the answer is the first one.",
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
            status = 201, description = "The order is accepted. With a known key: the first answer.",
            body = OrderView,
            headers(
                ("Location" = String, description = "Where the order is, such as `/orders/{id}`."),
                ("Idempotent-Replayed" = bool, description = "`true` where the key was known; else absent."),
            ),
        ),
    ),
)]
pub(crate) async fn place_order(
    State(state): State<AppState>,
    Extension(trace): Extension<TraceContext>,
    key: Option<IdempotencyKey>,
    request: Request,
) -> Result<Response, Problem> {
    let order = read_order(&state, request).await?;
    let event = NewEvent::of(order.order_id, 1, &trace, &order).map_err(Problem::internal)?;
    crash_point("order-unwritten");
    let key_text = key.as_ref().map(IdempotencyKey::as_str);
    let written = write_order(state.pool.for_writing()?, key_text, &order, &event).await;
    // Another request has held the key for two seconds. Without a key it is a lock on a whole table.
    let written = written.map_err(|error| match key {
        Some(_) if is_locked(&error) => problems::key_in_use(),
        None if is_locked(&error) => problems::table_locked(),
        _ => error.into(),
    })?;
    let Some(placed_at) = written else { return first_answer(&state, key, &order).await };
    crash_point("order-written");
    // After the commit, never before: the relay would scan, find nothing, and sleep again. If this process dies right
    // here, the relay's poll finds the event.
    state.wake.after_commit();
    tracing::info!(order_id = %order.order_id, total = order.total.amount, "order placed");
    Ok(created(OrderView::placed(order, placed_at)))
}

/// Reads an order from a request, checks it, and adds the prices.
pub async fn read_order(state: &AppState, request: Request) -> Result<OrderCreated, Problem> {
    let request: OrderRequest = read_json(request, problems::invalid_order).await?;
    let prices = state.prices(request.lines.iter().map(|line| line.sku.as_str())).await?;
    request.price(&prices)
}

/// Writes the order, its lines, its key and its event: all or nothing. `None` when the key is known; then nothing.
///
/// One statement, for two reasons. It is one round trip instead of five. And there is no `BEGIN`: this future is dropped
/// when the client hangs up or the time-out fires, and a `BEGIN` that is dropped half-way leaves a pooled connection inside
/// a transaction. The next request's order would be written into that, acknowledged, and rolled back later.
///
/// There is no `NOTIFY` here: inside this statement it would take a server-wide lock until the commit is on disk, and the commits
/// of all orders would run one after another.
///
/// The key is inserted first, and everything else depends on its row: of fifty requests with one key, forty-nine wait there
/// until the first has committed, and then insert nothing.
pub async fn write_order(
    executor: impl PgExecutor<'_>,
    key: Option<&str>,
    order: &OrderCreated,
    event: &NewEvent,
) -> Result<Option<OffsetDateTime>, sqlx::Error> {
    let skus: Vec<_> = order.lines.iter().map(|line| line.sku.clone()).collect();
    let quantities: Vec<_> = order.lines.iter().map(|line| line.quantity).collect();
    let unit_prices: Vec<_> = order.lines.iter().map(|line| line.unit_price).collect();
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
        order.order_id,
        order.customer_id,
        order.total.amount,
        order.total.currency,
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
        key,
    )
    .fetch_optional(executor)
    .await
}

/// Marks the answer to a known key. Not in the draft of the header; a name that payment providers use.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Repeats the first answer under a known key.
async fn first_answer(
    state: &AppState,
    key: Option<IdempotencyKey>,
    order: &OrderCreated,
) -> Result<Response, Problem> {
    let key = key.ok_or_else(|| Problem::internal("an order without a key was not written"))?;
    let view = key.first_answer(&state.pool, order).await?.ok_or_else(problems::key_in_use)?;
    // Only read: the commit of the first attempt may still wait for a standby.
    state.pool.await_replication().await?;
    tracing::info!(order_id = %view.id, "idempotency key known; first answer repeated");
    let mut response = created(view);
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}

fn created(view: OrderView) -> Response {
    let location: [(HeaderName, String); 1] = [(LOCATION, format!("/orders/{}", view.id))];
    (StatusCode::CREATED, location, Json(view)).into_response()
}

/// The only currency; the tables check it too.
const CURRENCY: &str = "EUR";

/// The body of `POST /orders`. Unknown fields are refused: a client that sends `total` or `status` believes that it
/// decides them.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OrderRequest {
    /// The customer. Not the nil UUID.
    #[serde(deserialize_with = "uuid::serde::hyphenated::deserialize")]
    customer_id: Uuid,
    /// The lines: each SKU once.
    #[schema(min_items = 1, max_items = 100)]
    lines: Vec<RequestedLine>,
}

/// A quantity of one product.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RequestedLine {
    /// Stock keeping unit: a product of the catalogue.
    sku: String,
    /// How many pieces.
    #[schema(minimum = 1, maximum = 1000)]
    quantity: i64,
}

/// The limits of an order. The numbers above are for the OpenAPI document; `documented_limits_are_those_that_are_checked` compares them.
const MAX_LINES: usize = 100;
const MAX_QUANTITY: i64 = 1000;

impl OrderRequest {
    /// Checks what the types cannot express, and adds the prices: the order that can be accepted, under a new id.
    fn price(self, prices: &Prices) -> Result<OrderCreated, Problem> {
        if self.customer_id.is_nil() {
            return Err(problems::invalid_order("customerId is the nil UUID"));
        }
        if self.lines.is_empty() || self.lines.len() > MAX_LINES {
            return Err(problems::invalid_order(format!("an order has 1 to {MAX_LINES} lines")));
        }
        let mut seen = HashSet::new();
        let mut lines = Vec::with_capacity(self.lines.len());
        for (index, requested) in self.lines.into_iter().enumerate() {
            let quantity = i32::try_from(requested.quantity).unwrap_or(0);
            if !(1..=MAX_QUANTITY).contains(&i64::from(quantity)) {
                return Err(problems::invalid_order(format!(
                    "lines[{index}].quantity is 1 to {MAX_QUANTITY}"
                )));
            }
            let unit_price = *prices.get(&requested.sku).ok_or_else(|| problems::unknown_sku(index))?;
            if !seen.insert(requested.sku.clone()) {
                return Err(problems::invalid_order(format!(
                    "lines[{index}].sku is in an earlier line already; add up the quantities"
                )));
            }
            lines.push(Line { sku: requested.sku, quantity, unit_price });
        }
        // Cannot overflow within these limits. Checked all the same, because prices are data and may grow.
        let amount =
            OrderCreated::sum(&lines).ok_or_else(|| problems::invalid_order("the total is too large"))?;
        let total = Money { amount, currency: CURRENCY.into() };
        Ok(OrderCreated { order_id: Uuid::now_v7(), customer_id: self.customer_id, lines, total })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_that_does_not_fit_is_refused_instead_of_wrapped() {
        let prices = Prices::from([("GOLD".to_owned(), i64::MAX / 10)]);
        let lines = vec![RequestedLine { sku: "GOLD".into(), quantity: 1000 }];
        assert!(OrderRequest { customer_id: Uuid::new_v4(), lines }.price(&prices).is_err());
    }
}
