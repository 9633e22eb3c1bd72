//! `GET /orders/{id}` and `GET /orders`.

use axum::{
    Json,
    extract::{Path, Query, State, rejection::PathRejection, rejection::QueryRejection},
};
use events::{Line, Money};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use time::OffsetDateTime;
use utoipa::{
    IntoParams, ToSchema,
    openapi::{Object, ObjectBuilder, Type},
};
use uuid::Uuid;

use crate::{Shop, catalogue::CURRENCY, order_request::PricedOrder, order_state, problem::Problem, refusals};

/// An order as a client sees it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OrderView {
    /// The order's name: UUIDv7, so that ids are in order of time.
    id: Uuid,
    /// Who ordered.
    customer_id: Uuid,
    #[schema(schema_with = public_status)]
    status: String,
    /// The sum over all lines of quantity times unit price.
    total: Money,
    /// What was ordered. Not in lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lines: Vec<Line>,
    /// When it was accepted.
    #[serde(with = "time::serde::rfc3339")]
    placed_at: OffsetDateTime,
    /// Why a cancelled order is off: `customer`, `outOfStock`, `paymentDeclined` or `timedOut`. More may follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    cause: Option<String>,
    /// What happened to the order, oldest first. Only where one order is asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    history: Vec<HistoryView>,
}

/// One event of an order's life: one of our own, or an answer of another service.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct HistoryView {
    /// The event's identity, the same in every copy.
    event_id: Uuid,
    /// What happened, such as `OrderCreated`.
    #[serde(rename = "type")]
    event_type: String,
    /// Who says so, such as `/orders`.
    source: String,
    /// Our own: the order's version after it, 1, 2, 3 …
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1)]
    sequence: Option<i32>,
    /// When it was written, with the change that it tells of: by the clock of the database, or, in an answer, by that of
    /// the service that gives it.
    #[serde(with = "time::serde::rfc3339")]
    recorded_at: OffsetDateTime,
    /// Our own: when the broker had it; null while it waits in the outbox.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(required)]
    published_at: Option<OffsetDateTime>,
    /// Answers: when it was applied here.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(required)]
    applied_at: Option<OffsetDateTime>,
}

impl OrderView {
    pub(crate) fn id(&self) -> Uuid {
        self.id
    }

    /// The answer to `POST /orders`.
    pub(crate) fn placed(id: Uuid, order: PricedOrder, placed_at: OffsetDateTime) -> Self {
        Self {
            id,
            customer_id: order.customer_id,
            status: "pending".into(),
            total: Money { amount: order.total, currency: CURRENCY.into() },
            lines: order.lines,
            placed_at,
            cause: None,
            history: Vec::new(),
        }
    }
}

/// One order, its lines and its history.
#[utoipa::path(
    get, path = "/orders/{id}", tag = "orders", operation_id = "readOrder",
    params(("id" = Uuid, Path, description = "The order.")),
    responses((status = 200, description = "The order.", body = OrderView), refusals::OneOrder),
)]
pub(crate) async fn read_order(
    State(shop): State<Shop>,
    id: Result<Path<Uuid>, PathRejection>,
) -> Result<Json<OrderView>, Problem> {
    // What is not an id cannot be the id of an order.
    let Path(id) = id.map_err(|_| Problem::no_such_order())?;
    let order = sqlx::query!(
        "select customer_id, status, total_amount, currency, placed_at, cancelled_for from orders where id = $1",
        id
    )
    .fetch_optional(&shop.pool)
    .await?
    .ok_or_else(Problem::no_such_order)?;
    let lines = lines_of(&shop.pool, id).await?;
    let history = sqlx::query_as!(
        HistoryView,
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
    .fetch_all(&shop.pool)
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

/// Whatever a client can be told of a status, for the document.
fn public_status() -> Object {
    let mut names: Vec<_> =
        order_state::State::ALL.into_iter().map(order_state::State::public_name).collect();
    names.dedup();
    let told = "Where it is in its life. Who has answered what stands in the history.";
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names)).description(Some(told)).build()
}

/// What clients are told of a status.
fn public(status: &str) -> String {
    let known: Result<order_state::State, _> = status.parse();
    known.map_or_else(|_| status.to_owned(), |state| state.public_name().to_owned())
}

/// An order's lines, in the order in which they were asked for.
pub(crate) async fn lines_of(pool: &PgPool, id: Uuid) -> Result<Vec<Line>, sqlx::Error> {
    sqlx::query_as!(
        Line,
        "select sku, quantity, unit_price from order_lines where order_id = $1 order by line_number",
        id
    )
    .fetch_all(pool)
    .await
}

/// The longest page, and the length of one where nothing is said.
const LONGEST_PAGE: u8 = 100;
const PAGE: u8 = 20;

/// Which page of orders is asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Page {
    /// At most this many.
    #[param(minimum = 1, maximum = 100, default = 20, nullable = false)]
    limit: Option<u8>,
    /// Orders older than this one: `next` of the page before.
    #[param(nullable = false)]
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

/// Orders, newest first. Ids are made in order of time, to the millisecond, so the primary key is the order of the
/// list and the cursor: a page is as quick as the first one however far back it lies.
#[utoipa::path(
    get, path = "/orders", tag = "orders", operation_id = "listOrders",
    summary = "Orders, newest first, page by page", description = "Other parameters than these two are refused.",
    params(Page),
    responses((status = 200, description = "A page of them.", body = OrderPage), refusals::Listing),
)]
pub(crate) async fn list_orders(
    State(shop): State<Shop>,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Json<OrderPage>, Problem> {
    let Query(page) = page.map_err(|rejection| Problem::bad_query(&rejection.body_text()))?;
    let limit = page.limit.unwrap_or(PAGE);
    if !(1..=LONGEST_PAGE).contains(&limit) {
        return Err(Problem::bad_query("limit is 1 to 100"));
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
    .fetch_all(&shop.pool)
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
        assert_eq!((&schema["minimum"], &schema["maximum"]), (&json!(1), &json!(LONGEST_PAGE)));
        assert_eq!(schema["default"], json!(PAGE));
        let orders = &document["components"]["schemas"]["OrderPage"]["properties"]["orders"];
        assert_eq!(orders["maxItems"], json!(LONGEST_PAGE));
    }
}
