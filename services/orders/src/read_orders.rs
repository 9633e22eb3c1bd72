//! `GET /orders/{id}` and `GET /orders`.

use axum::{
    Json,
    extract::{Path, Query, State, rejection::PathRejection, rejection::QueryRejection},
};
use database::Pool;
use serde::{Deserialize, Serialize};
use service::problem::Problem;
use utoipa::{IntoParams, ToSchema};
use uuid::{Uuid, fmt::Hyphenated};

use crate::{
    AppState, order_state,
    order_view::{HistoryEntry, Line, Money, OrderView},
    problem_responses, problems,
};

/// One order, its lines and its history.
#[utoipa::path(
    get, path = "/orders/{id}", tag = "orders", operation_id = "readOrder",
    params(("id" = Uuid, Path, description = "The order's id.")),
    responses((status = 200, description = "The order.", body = OrderView), problem_responses::OneOrder),
)]
pub(crate) async fn read_order(
    State(state): State<AppState>,
    id: Result<Path<Hyphenated>, PathRejection>,
) -> Result<Json<OrderView>, Problem> {
    // Text that is not an id is not the id of an order.
    let id = id.map_err(|_| problems::no_such_order())?.into_uuid();
    let order = sqlx::query!(
        "select customer_id, status, total_amount, currency, placed_at, cancelled_for from orders where id = $1",
        id
    )
    .fetch_optional(&state.pool)
    .await?
    .ok_or_else(problems::no_such_order)?;
    let lines = lines_of(&state.pool, id).await?;
    let history = sqlx::query_as!(
        HistoryEntry,
        r#"select event_id as "event_id!", event_type as "event_type!", source as "source!", sequence,
                  recorded_at as "recorded_at!", published_at, applied_at
           from (
               select event_id, event_type, '/orders' as source, aggregate_version as sequence,
                      created_at as recorded_at, published_at, null as applied_at, created_at as at
               from outbox where aggregate_id = $1
               union all
               select event_id, event_type, source, null, occurred_at, null, applied_at, applied_at
               from answers where order_id = $1
           ) as life
           order by at, applied_at nulls last"#,
        id
    )
    .fetch_all(&state.pool)
    .await?;
    Ok(Json(OrderView {
        id,
        customer_id: order.customer_id,
        status: public(&order.status),
        total: Money { amount: order.total_amount, currency: order.currency },
        lines,
        placed_at: order.placed_at,
        cause: order.cancelled_for,
        history,
    }))
}

/// The status as clients see it.
fn public(status: &str) -> String {
    let known: Result<order_state::State, _> = status.parse();
    known.map_or_else(|_| status.to_owned(), |state| state.public_name().to_owned())
}

/// An order's lines, in the order of the request.
pub(crate) async fn lines_of(pool: &Pool, id: Uuid) -> Result<Vec<Line>, sqlx::Error> {
    sqlx::query_as!(
        Line,
        "select sku, quantity, unit_price from order_lines where order_id = $1 order by line_number",
        id
    )
    .fetch_all(pool)
    .await
}

const MAX_LIMIT: u8 = 100;
const DEFAULT_LIMIT: u8 = 20;

/// The page that is requested.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Page {
    /// At most this many.
    #[param(minimum = 1, maximum = 100, default = 20, nullable = false)]
    limit: Option<u8>,
    /// Orders older than this one: `next` of the previous page.
    #[param(nullable = false)]
    #[serde(default, deserialize_with = "uuid::serde::hyphenated::option::deserialize")]
    after: Option<Uuid>,
}

/// A page of orders, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OrderPage {
    /// Without their lines and their history.
    #[schema(max_items = 100)]
    orders: Vec<OrderView>,
    /// For `after`; null on the last page.
    #[schema(required)]
    next: Option<Uuid>,
}

/// Lists orders, newest first. Ids sort by time, to the millisecond, so the primary key is the order of the list and the
/// cursor: every page is as fast as the first one.
#[utoipa::path(
    get, path = "/orders", tag = "orders", operation_id = "listOrders",
    summary = "Lists orders, newest first, page by page", description = "Other parameters than these two are refused.",
    params(Page),
    responses((status = 200, description = "A page of orders.", body = OrderPage), problem_responses::ListOrders),
)]
pub(crate) async fn list_orders(
    State(state): State<AppState>,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Json<OrderPage>, Problem> {
    let Query(page) = page.map_err(|rejection| problems::bad_query(&rejection.body_text()))?;
    let limit = page.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(problems::bad_query("limit is 1 to 100"));
    }
    let rows = sqlx::query!(
        "select id, customer_id, status, total_amount, currency, placed_at, cancelled_for
         from orders
         where $1::uuid is null or id < $1
         order by id desc
         limit $2",
        page.after,
        i64::from(limit),
    )
    .fetch_all(&state.pool)
    .await?;
    let next = rows.last().filter(|_| rows.len() == usize::from(limit)).map(|row| row.id);
    let orders = rows.into_iter().map(|row| OrderView {
        id: row.id,
        customer_id: row.customer_id,
        status: public(&row.status),
        total: Money { amount: row.total_amount, currency: row.currency },
        lines: Vec::new(),
        placed_at: row.placed_at,
        cause: row.cancelled_for,
        history: Vec::new(),
    });
    Ok(Json(OrderPage { orders: orders.collect(), next }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_limits_of_a_page_in_the_document_are_those_that_are_checked() {
        let document = serde_json::to_value(crate::api::openapi()).unwrap();
        let limit = &document["paths"]["/orders"]["get"]["parameters"][0];
        assert_eq!(limit["name"], "limit");
        let schema = &limit["schema"];
        assert_eq!((&schema["minimum"], &schema["maximum"]), (&json!(1), &json!(MAX_LIMIT)));
        assert_eq!(schema["default"], json!(DEFAULT_LIMIT));
        let orders = &document["components"]["schemas"]["OrderPage"]["properties"]["orders"];
        assert_eq!(orders["maxItems"], json!(MAX_LIMIT));
    }
}
