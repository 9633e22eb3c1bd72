//! The order service with `POST /orders` written as it is often written. Everything else is the product's: the other
//! routes, the tables, the relays, the consumer. So whatever a drill finds is about that one handler. `VARIANT` names it;
//! `docs/variants.md` says what to watch. Compare with `services/orders/src/main.rs`.

use std::process::ExitCode;

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use orders::{AppState, INBOX, OrderHandler, SERVICE, Settings, api, idempotency_key, open_orders};
use runtime::{Health, Needed, settings::exit_invalid_config};
use service::{ConsumerTasks, Process, RelayTasks};

use crate::state::{OrderRequest, VariantState};

mod cancellable_begin;
mod dual_write;
mod notify_in_transaction;
mod publish_then_commit;
mod state;
mod wake_before_commit;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    sabotage::crash::arm_from_env();
    let settings: Settings = service::load(&SERVICE);
    settings.check();
    let variant = Variant::from_env();
    let common = &settings.common;
    let mut process = Process::start(&SERVICE, settings.http_address, common)?;
    let relays = RelayTasks::new(&process, common, &settings.publisher);
    let consumer = ConsumerTasks::new(&process, INBOX, common, &settings.consumer);
    let state = AppState::new(&settings, relays.wake());
    let variant_state = VariantState::new(&settings, state.pool(), relays.wake())?;
    let health = Health::new()
        .with("database", Needed::Yes, process.database())
        .with("broker", Needed::No, relays.probe())
        .with("consumer", Needed::No, consumer.probe());
    process.serve(routes(variant, variant_state.clone(), api::router(state.clone())?), health);

    if process.prepare().await {
        state.read_catalogue().await?;
        variant_state.read_prices().await?;
        let handler = OrderHandler::new(consumer.pool(), relays.wake());
        process.watch_database(state.pool());
        let admin = consumer.admin_routes(handler.clone()).merge(relays.admin_routes());
        process.serve_admin(admin.merge(open_orders::admin_routes(consumer.pool())));
        let keys = idempotency_key::retention(consumer.pool(), settings.keep_idempotency_keys);
        process.spawn("key retention", keys.run(process.stop()));
        let watch = open_orders::watch(state, settings.answer_within, consumer.caught_up(), process.stop());
        process.spawn("open orders", watch);
        relays.start(&mut process);
        consumer.start(&mut process, handler);
    }
    Ok(process.run().await)
}

/// A way to write an order. Each has a file of its own.
#[derive(Debug, Clone, Copy)]
enum Variant {
    DualWrite,
    PublishThenCommit,
    NotifyInTransaction,
    CancellableBegin,
    WakeBeforeCommit,
}

impl Variant {
    const ALL: [Self; 5] = [
        Self::DualWrite,
        Self::PublishThenCommit,
        Self::NotifyInTransaction,
        Self::CancellableBegin,
        Self::WakeBeforeCommit,
    ];

    /// The value of `VARIANT`.
    const fn name(self) -> &'static str {
        match self {
            Self::DualWrite => "dual-write",
            Self::PublishThenCommit => "publish-then-commit",
            Self::NotifyInTransaction => "notify-in-transaction",
            Self::CancellableBegin => "cancellable-begin",
            Self::WakeBeforeCommit => "wake-before-commit",
        }
    }

    /// Reads `VARIANT`. A missing or unknown name ends the process with exit code 78.
    fn from_env() -> Self {
        let wanted = std::env::var("VARIANT").unwrap_or_default();
        Self::ALL.into_iter().find(|variant| variant.name() == wanted).unwrap_or_else(|| {
            exit_invalid_config(&format!("VARIANT: one of {}", Self::ALL.map(Self::name).join(", ")))
        })
    }
}

/// The product's routes, with `POST /orders` replaced by the variant's.
fn routes(variant: Variant, state: VariantState, product: Router) -> Router {
    let place = move |State(state): State<VariantState>, Json(request): Json<OrderRequest>| async move {
        place_order(variant, &state, request).await
    };
    Router::new()
        .route("/orders", post(place).fallback_service(product.clone()))
        .fallback_service(product)
        .with_state(state)
}

async fn place_order(variant: Variant, state: &VariantState, request: OrderRequest) -> Response {
    let Some(order) = state.price(request) else {
        return StatusCode::UNPROCESSABLE_ENTITY.into_response();
    };
    let written = match variant {
        Variant::DualWrite => dual_write::write(state, &order).await,
        Variant::PublishThenCommit => publish_then_commit::write(state, &order).await,
        Variant::NotifyInTransaction => notify_in_transaction::write(state, &order).await,
        Variant::CancellableBegin => cancellable_begin::write(state, &order).await,
        Variant::WakeBeforeCommit => wake_before_commit::write(state, &order).await,
    };
    match written {
        Ok(()) => (StatusCode::CREATED, Json(serde_json::json!({ "id": order.order_id }))).into_response(),
        Err(error) => {
            let error = format!("{error:#}");
            tracing::warn!(order_id = %order.order_id, error, "failed to place order");
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
    }
}
