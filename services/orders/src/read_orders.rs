//! `GET /orders/{id}` and `GET /orders`.

use axum::{
    Json,
    extract::{
        Path, Query, State,
        rejection::{PathRejection, QueryRejection},
    },
};
use database::Pool;
use events::OrderCreated;
use serde::{Deserialize, Serialize};
use service::problem::Problem;
use time::OffsetDateTime;
use utoipa::{
    IntoParams, ToSchema,
    openapi::{Object, ObjectBuilder, Type},
};
use uuid::{Uuid, fmt::Hyphenated};

use crate::{app_state::AppState, order_state::OrderState, problems};

/// One order, its lines and its history.
#[utoipa::path(
    get, path = "/orders/{id}", tag = "orders", operation_id = "readOrder",
    params(("id" = Uuid, Path, description = "The order's id.")),
    responses((status = 200, description = "The order.", body = OrderView)),
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
    let lines = lines_of(&state.pool, id).await?.into_iter().map(Line::from).collect();
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
    let known: Result<OrderState, _> = status.parse();
    known.map_or_else(|_| status.to_owned(), |state| state.public_name().to_owned())
}

/// An order's lines, in the order of the request.
pub(crate) async fn lines_of(pool: &Pool, id: Uuid) -> Result<Vec<events::Line>, sqlx::Error> {
    sqlx::query_as!(
        events::Line,
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
    responses((status = 200, description = "A page of orders.", body = OrderPage)),
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

/// One line of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Line {
    /// Stock keeping unit: which product.
    pub(crate) sku: String,
    /// How many pieces; at least one.
    #[schema(minimum = 1)]
    pub(crate) quantity: i32,
    /// Price of one piece at the moment of ordering, in minor units (cents) of the total's currency.
    #[schema(minimum = 1)]
    pub(crate) unit_price: i64,
}

impl From<events::Line> for Line {
    fn from(events::Line { sku, quantity, unit_price }: events::Line) -> Self {
        Self { sku, quantity, unit_price }
    }
}

/// An amount of money: an integer in minor units, and its ISO 4217 currency. Never a float.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Money {
    /// In minor units: 1250 is 12.50.
    pub(crate) amount: i64,
    /// Three letters, for example `EUR`.
    pub(crate) currency: String,
}

/// An order as a client sees it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OrderView {
    /// UUIDv7, so that ids sort by time.
    pub(crate) id: Uuid,
    pub(crate) customer_id: Uuid,
    #[schema(schema_with = public_status)]
    pub(crate) status: String,
    /// The sum over all lines of quantity times unit price.
    pub(crate) total: Money,
    /// What was ordered. Not in lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) lines: Vec<Line>,
    /// When it was accepted.
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) placed_at: OffsetDateTime,
    /// Why a cancelled order was cancelled: `customer`, `outOfStock`, `paymentDeclined` or `timedOut`. More may follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) cause: Option<String>,
    /// The events of the order, oldest first. Only where one order is requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) history: Vec<HistoryEntry>,
}

impl OrderView {
    /// The answer to `POST /orders`.
    pub(crate) fn placed(order: OrderCreated, placed_at: OffsetDateTime) -> Self {
        Self {
            id: order.order_id,
            customer_id: order.customer_id,
            status: OrderState::Pending.public_name().into(),
            total: Money { amount: order.total.amount, currency: order.total.currency },
            lines: order.lines.into_iter().map(Line::from).collect(),
            placed_at,
            cause: None,
            history: Vec::new(),
        }
    }
}

/// One event of an order's life: one of the order service's own, or an answer of another service.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HistoryEntry {
    /// The event's identity, the same in every copy.
    pub(crate) event_id: Uuid,
    /// The event's type, for example `OrderCreated`.
    #[serde(rename = "type")]
    pub(crate) event_type: String,
    /// The service that published it, for example `/orders`.
    pub(crate) source: String,
    /// Own events: the order's version after it, 1, 2, 3 …
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1)]
    pub(crate) sequence: Option<i32>,
    /// When it was written, with the change that it describes: by the clock of the database, or, for an answer, by that of
    /// the service that published it.
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) recorded_at: OffsetDateTime,
    /// Own events: when the broker confirmed it; null while it waits in the outbox.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(required)]
    pub(crate) published_at: Option<OffsetDateTime>,
    /// Answers: when the order service applied it.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(required)]
    pub(crate) applied_at: Option<OffsetDateTime>,
}

/// The status as clients see it, for the OpenAPI document.
fn public_status() -> Object {
    let mut names: Vec<_> = OrderState::ALL.into_iter().map(OrderState::public_name).collect();
    names.dedup();
    let description = "The order's status. The history says which service has answered what.";
    ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(names))
        .description(Some(description))
        .build()
}

/// The catalogue.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProductList {
    products: Vec<Product>,
}

/// A product that can be ordered.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Product {
    /// Stock keeping unit: what an order's line names.
    sku: String,
    name: String,
    /// The price of one piece.
    unit_price: Money,
}

/// Lists all products. Whether there is stock is not known here: inventory decides, for each order.
#[utoipa::path(
    get, path = "/products", tag = "orders", operation_id = "listProducts",
    summary = "Lists what can be ordered",
    description = "All products by their SKU, in one answer. Whether there is enough stock is decided for each order.",
    responses((status = 200, description = "The catalogue.", body = ProductList)),
)]
pub(crate) async fn list_products(State(state): State<AppState>) -> Result<Json<ProductList>, Problem> {
    let rows = sqlx::query!("select sku, name, unit_price, currency from products order by sku")
        .fetch_all(&state.pool)
        .await?;
    let products = rows.into_iter().map(|row| Product {
        sku: row.sku,
        name: row.name,
        unit_price: Money { amount: row.unit_price, currency: row.currency },
    });
    Ok(Json(ProductList { products: products.collect() }))
}
