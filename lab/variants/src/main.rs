//! The order service with `POST /orders`, or with the relay, written as it is often written. Everything else is the
//! product's: the other routes, the tables, the consumer. So whatever a drill finds is about that one part. `VARIANT` names
//! it; `docs/variants.md` says what to watch. Compare with `services/orders/src/main.rs`.

use std::process::ExitCode;

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use messaging::SharedHandler;
use orders::{AppState, INBOX, OrderHandler, SERVICE, Settings, api, idempotency_key, open_orders};
use outbox::Wake;
use service::{ConsumerTasks, Health, Needed, Process, RelayTasks, environment::exit_invalid_config};

use crate::{
    relay::RelayVariant,
    state::{OrderRequest, VariantState},
};

mod cancellable_begin;
mod dual_write;
mod notify_in_transaction;
mod publish_then_commit;
mod relay;
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
    // The relays of some variants hear of events by NOTIFY only.
    let wake = if variant.is_woken_directly() { relays.wake() } else { Wake::new() };
    let state = AppState::new(&settings, wake.clone());
    let variant_state = VariantState::new(&settings, wake.clone())?;
    let health = Health::new()
        .with("database", Needed::Yes, process.database())
        .with("broker", Needed::No, relays.probe())
        .with("consumer", Needed::No, consumer.probe());
    let product = api::router(state.clone())?;
    process.serve(
        match variant {
            Variant::Write(write) => routes(write, variant_state.clone(), product),
            Variant::Relay(_) => product,
        },
        health,
    );

    if process.prepare().await
        && process.read_at_start("the catalogue", || state.read_catalogue()).await?
        && process.read_at_start("the prices", || variant_state.read_prices()).await?
    {
        let handler = SharedHandler::new(OrderHandler::new(consumer.pool(), wake));
        process.watch_database();
        let admin = consumer.admin_routes(handler.clone()).merge(relays.admin_routes());
        process.serve_admin(admin.merge(open_orders::admin_routes(process.operations())));
        let keys = idempotency_key::retention(process.operations(), settings.keep_idempotency_keys);
        process.spawn("key retention", keys.run(process.stop()));
        let watch = open_orders::watch(state, settings.answer_within, consumer.caught_up(), process.stop());
        process.spawn("open orders", watch);
        match variant {
            Variant::Write(_) => relays.start(&mut process),
            Variant::Relay(variant) => relay::start(variant, &mut process, &settings, relays).await?,
        }
        consumer.start(&mut process, handler);
    }
    Ok(process.run().await)
}

/// What is written in another way.
#[derive(Debug, Clone, Copy)]
enum Variant {
    Write(WriteVariant),
    Relay(RelayVariant),
}

/// A way to write an order. Each has a file of its own.
#[derive(Debug, Clone, Copy)]
enum WriteVariant {
    DualWrite,
    PublishThenCommit,
    NotifyInTransaction,
    CancellableBegin,
    WakeBeforeCommit,
}

impl Variant {
    /// Each with its value of `VARIANT`.
    const ALL: [(&str, Self); 10] = [
        ("dual-write", Self::Write(WriteVariant::DualWrite)),
        ("publish-then-commit", Self::Write(WriteVariant::PublishThenCommit)),
        ("notify-in-transaction", Self::Write(WriteVariant::NotifyInTransaction)),
        ("cancellable-begin", Self::Write(WriteVariant::CancellableBegin)),
        ("wake-before-commit", Self::Write(WriteVariant::WakeBeforeCommit)),
        ("poll-one-by-one", Self::Relay(RelayVariant::PollOneByOne)),
        ("row-locks", Self::Relay(RelayVariant::RowLocks)),
        ("delete-once-published", Self::Relay(RelayVariant::DeleteOncePublished)),
        ("trigger-notify", Self::Relay(RelayVariant::TriggerNotify)),
        ("listen-alone", Self::Relay(RelayVariant::ListenAlone)),
    ];

    /// Whether a committed order wakes its relay in this process.
    fn is_woken_directly(self) -> bool {
        !matches!(
            self,
            Self::Relay(RelayVariant::PollOneByOne | RelayVariant::TriggerNotify | RelayVariant::ListenAlone)
        )
    }

    /// Reads `VARIANT`. A missing or unknown name ends the process with exit code 78.
    fn from_env() -> Self {
        let wanted = std::env::var("VARIANT").unwrap_or_default();
        let known = Self::ALL.into_iter().find(|(name, _)| *name == wanted);
        known.map_or_else(
            || {
                let names = Self::ALL.map(|(name, _)| name).join(", ");
                exit_invalid_config(&format!("VARIANT: one of {names}"))
            },
            |(_, variant)| variant,
        )
    }
}

/// The product's routes, with `POST /orders` replaced by the variant's.
fn routes(variant: WriteVariant, state: VariantState, product: Router) -> Router {
    let place = move |State(state): State<VariantState>, Json(request): Json<OrderRequest>| async move {
        place_order(variant, &state, request).await
    };
    Router::new()
        .route("/orders", post(place).fallback_service(product.clone()))
        .fallback_service(product)
        .with_state(state)
}

async fn place_order(variant: WriteVariant, state: &VariantState, request: OrderRequest) -> Response {
    let Some(order) = state.price(request) else {
        return StatusCode::UNPROCESSABLE_ENTITY.into_response();
    };
    let written = match variant {
        WriteVariant::DualWrite => dual_write::write(state, &order).await,
        WriteVariant::PublishThenCommit => publish_then_commit::write(state, &order).await,
        WriteVariant::NotifyInTransaction => notify_in_transaction::write(state, &order).await,
        WriteVariant::CancellableBegin => cancellable_begin::write(state, &order).await,
        WriteVariant::WakeBeforeCommit => wake_before_commit::write(state, &order).await,
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
