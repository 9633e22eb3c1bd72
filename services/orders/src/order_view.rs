//! What the API shows of an order. Types of their own, because the events' types are a contract with other readers.

use serde::Serialize;
use time::OffsetDateTime;
use utoipa::{
    ToSchema,
    openapi::{Object, ObjectBuilder, Type},
};
use uuid::Uuid;

use crate::order_state::State;

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

/// An amount of money: an integer in minor units, and its ISO 4217 currency. Never a float.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Money {
    /// In minor units: 1250 is 12.50.
    pub(crate) amount: i64,
    /// Three letters, such as `EUR`.
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

/// One event of an order's life: one of the order service's own, or an answer of another service.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HistoryEntry {
    /// The event's identity, the same in every copy.
    pub(crate) event_id: Uuid,
    /// The event's type, such as `OrderCreated`.
    #[serde(rename = "type")]
    pub(crate) event_type: String,
    /// The service that published it, such as `/orders`.
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
    let mut names: Vec<_> = State::ALL.into_iter().map(State::public_name).collect();
    names.dedup();
    let description = "The order's status. The history says which service has answered what.";
    ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(names))
        .description(Some(description))
        .build()
}
