//! What the variants have in common.

use std::{collections::HashMap, sync::Arc};

use anyhow::{Context as _, bail};
use broker::Publisher;
use events::{
    Draft, Line, Money, OrderCreated, TraceContext,
    transport::{Outcome, Outgoing, Publisher as _},
};
use serde::Deserialize;
use sqlx::{PgConnection, PgPool};
use tokio::sync::Mutex;
use uuid::Uuid;

/// Everything is sold in euros.
const CURRENCY: &str = "EUR";

/// Connections, and the prices.
#[derive(Clone)]
pub(crate) struct Shop {
    pub(crate) pool: PgPool,
    publisher: Arc<Mutex<Publisher>>,
    prices: Arc<HashMap<String, i64>>,
}

/// The body of `POST /orders`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OrderRequest {
    customer_id: Uuid,
    lines: Vec<RequestedLine>,
}

#[derive(Deserialize)]
struct RequestedLine {
    sku: String,
    quantity: i32,
}

impl Shop {
    pub(crate) async fn open(pool: PgPool, publisher: Publisher) -> anyhow::Result<Self> {
        let prices: Vec<(String, i64)> =
            sqlx::query_as("select sku, unit_price from products").fetch_all(&pool).await?;
        let prices = Arc::new(prices.into_iter().collect());
        Ok(Self { pool, publisher: Arc::new(Mutex::new(publisher)), prices })
    }

    /// The order with its prices; `None` if it cannot be had.
    pub(crate) fn price(&self, request: OrderRequest) -> Option<OrderCreated> {
        let price = |line: RequestedLine| {
            let unit_price = *self.prices.get(&line.sku)?;
            Some(Line { sku: line.sku, quantity: line.quantity, unit_price })
        };
        let lines = request.lines.into_iter().map(price).collect::<Option<Vec<_>>>()?;
        let total = Money { amount: OrderCreated::sum(&lines)?, currency: CURRENCY.into() };
        Some(OrderCreated { order_id: Uuid::now_v7(), customer_id: request.customer_id, lines, total })
    }

    /// Publishes the order's creation straight from the request: with confirms, by the publisher of the real service, one
    /// message at a time.
    pub(crate) async fn publish(&self, order: &OrderCreated) -> anyhow::Result<()> {
        let trace = TraceContext::root();
        let event = Draft::of("/orders", ("order", order.order_id, 1), &trace, order)?;
        let message = Outgoing {
            id: event.event_id,
            event_type: event.event_type.into(),
            body: event.payload.into_bytes(),
            traceparent: Some(trace.to_string()),
        };
        let mut publisher = self.publisher.lock().await;
        publisher.ready().await?;
        match publisher.publish(&[message]).await.first().context("the broker said nothing")? {
            Outcome::Confirmed => Ok(()),
            Outcome::Refused(refusal) => bail!("not published: {refusal}"),
            Outcome::Unknown => bail!("nobody knows whether it was published"),
        }
    }
}

/// The order and its lines, in the caller's transaction.
pub(crate) async fn insert_order(
    transaction: &mut PgConnection,
    order: &OrderCreated,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "insert into orders (id, customer_id, status, total_amount, currency) values ($1, $2, 'pending', $3, $4)",
    )
    .bind(order.order_id)
    .bind(order.customer_id)
    .bind(order.total.amount)
    .bind(&order.total.currency)
    .execute(&mut *transaction)
    .await?;
    for (number, line) in (1_i16..).zip(&order.lines) {
        sqlx::query(
            "insert into order_lines (order_id, line_number, sku, quantity, unit_price) values ($1, $2, $3, $4, $5)",
        )
        .bind(order.order_id)
        .bind(number)
        .bind(&line.sku)
        .bind(line.quantity)
        .bind(line.unit_price)
        .execute(&mut *transaction)
        .await?;
    }
    Ok(())
}
