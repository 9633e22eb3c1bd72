//! Orders written as they are often written: each way is a file of about ten lines of code. They share pools, a publisher, and
//! the insert of an order.

mod cancellable_begin;
mod dual_write;
mod notify_in_transaction;
mod publish_then_commit;
mod wake_before_commit;

use std::{pin::Pin, sync::Arc};

use anyhow::{Context as _, bail};
use axum::{
    Json, Router,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use database::{Pool, PoolKind};
use events::{NewEvent, OrderCreated, TraceContext};
use flaws::Flaw;
use messaging::{Outgoing, PublishOutcome, Publisher as _};
use orders::{AppState, SERVICE, Settings, read_order};
use rabbitmq::{ConfirmingPublisher, ConnectionStatus, Endpoint};
use service::problem::Problem;
use sqlx::{PgConnection, PgPool, postgres::PgPoolOptions};
use tokio::sync::Mutex;

/// Writes an order in another way than the product.
pub(crate) type Write = for<'a> fn(
    &'a WriteState,
    &'a OrderCreated,
) -> Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send + 'a>>;

/// How a flaw writes orders. `None`: as the product does.
pub(crate) fn of(flaw: Option<Flaw>) -> Option<Write> {
    Some(match flaw? {
        Flaw::DualWrite => |state, order| Box::pin(dual_write::write(state, order)),
        Flaw::PublishThenCommit => |state, order| Box::pin(publish_then_commit::write(state, order)),
        Flaw::NotifyInTransaction => |state, order| Box::pin(notify_in_transaction::write(state, order)),
        Flaw::CancellableBegin => |state, order| Box::pin(cancellable_begin::write(state, order)),
        Flaw::WakeBeforeCommit => |state, order| Box::pin(wake_before_commit::write(state, order)),
        _ => return None,
    })
}

/// The product's routes, with `POST /orders` replaced.
pub(crate) fn routes(
    write: Write,
    settings: &Settings,
    product: &AppState,
    routes: Router,
) -> anyhow::Result<Router> {
    let place = async move |State(state): State<WriteState>, request: Request| {
        place_order(write, &state, request).await
    };
    Ok(Router::new()
        .route("/orders", post(place).fallback_service(routes.clone()))
        .fallback_service(routes)
        .with_state(WriteState::new(settings, product.clone())?))
}

async fn place_order(write: Write, state: &WriteState, request: Request) -> Result<Response, Problem> {
    let order = read_order(&state.product, request).await?;
    if let Err(error) = write(state, &order).await {
        let error = format!("{error:#}");
        tracing::warn!(order_id = %order.order_id, error, "failed to place order");
        return Ok(StatusCode::SERVICE_UNAVAILABLE.into_response());
    }
    Ok((StatusCode::CREATED, Json(serde_json::json!({ "id": order.order_id }))).into_response())
}

/// Pools and a publisher. Cheap to clone.
#[derive(Clone)]
pub(crate) struct WriteState {
    pub(crate) product: AppState,
    /// As the product's: a connection whose operation was given up is closed.
    pub(crate) transactions: Pool,
    /// sqlx's own, which lends such a connection again.
    pub(crate) unguarded: PgPool,
    publisher: Arc<Mutex<ConfirmingPublisher>>,
}

impl WriteState {
    fn new(settings: &Settings, product: AppState) -> anyhow::Result<Self> {
        let Settings { common, publisher, own, .. } = settings;
        let endpoint = Endpoint::new(&common.amqp_url, SERVICE.name)?;
        let publisher =
            ConfirmingPublisher::new(endpoint, ConnectionStatus::new("variant"), publisher.confirm_deadline);
        let (url, connections) = (&common.database_url, own.database_connections);
        let unguarded = PgPoolOptions::new().max_connections(connections).test_before_acquire(false);
        let unguarded = unguarded.connect_lazy_with(url.options().application_name("orders"));
        let transactions = Pool::new(url, "orders-variant", connections, PoolKind::Transactions);
        Ok(Self { product, transactions, unguarded, publisher: Arc::new(Mutex::new(publisher)) })
    }

    /// Publishes the order's event straight from the request, with the product's publisher and its confirms. One message
    /// at a time.
    pub(crate) async fn publish(&self, order: &OrderCreated) -> anyhow::Result<()> {
        let trace = TraceContext::root();
        let event = NewEvent::of(order.order_id, 1, &trace, order)?;
        let message = Outgoing {
            id: event.event_id,
            event_type: event.event_type.into(),
            lane: event.lane,
            body: event.payload.into_bytes(),
            traceparent: Some(trace.to_string()),
        };
        let mut publisher = self.publisher.lock().await;
        publisher.ready().await?;
        match publisher.publish(&[&message]).await.first().context("the publisher returned no outcome")? {
            PublishOutcome::Confirmed => Ok(()),
            PublishOutcome::Refused(refusal) => bail!("failed to publish the event: {refusal}"),
            PublishOutcome::Unknown => bail!("failed to publish the event: the outcome is unknown"),
        }
    }
}

/// The order's `OrderCreated` event, for an outbox.
pub(crate) fn created_event(order: &OrderCreated) -> Result<NewEvent, serde_json::Error> {
    NewEvent::of(order.order_id, 1, &TraceContext::root(), order)
}

/// Inserts the order and its lines in the caller's transaction.
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
