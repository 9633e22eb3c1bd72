//! The order service with `POST /orders`, or with the relay, written as it is often written. Everything else is the
//! product's: the other routes, the tables, the consumer. So whatever a drill finds is about that one part. `VARIANT` names
//! it; `docs/variants.md` says what to watch.

use std::process::ExitCode;

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use outbox::{Relay, Wake};
use service::{Parts, Process, RelayTasks, environment::exit_invalid_config};

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
    let variant = Variant::from_env();
    orders::run(variant, |product, settings, wake| match variant {
        Variant::Write(write) => Ok(routes(write, VariantState::new(settings, wake.clone())?, product)),
        Variant::Relay(_) => Ok(product),
    })
    .await
}

impl Parts for Variant {
    /// The relays of some variants hear of events by NOTIFY only.
    fn wake(&self, relays: Wake) -> Wake {
        if self.is_woken_directly() { relays } else { Wake::new() }
    }

    async fn start_relays(&self, relays: RelayTasks, process: &mut Process) -> anyhow::Result<()> {
        match self {
            Self::Write(_) => relays.start(process, Relay::new),
            Self::Relay(variant) => relay::start(*variant, relays, process).await?,
        }
        Ok(())
    }
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
    let order = match state.price(request).await {
        Ok(Some(order)) => order,
        Ok(None) => return StatusCode::UNPROCESSABLE_ENTITY.into_response(),
        Err(_) => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
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
