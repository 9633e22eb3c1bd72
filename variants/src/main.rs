//! The order service with `POST /orders` written as it is often written. What a drill needs besides is the real one's: the
//! tables, the consumer that follows the answers, the relays for what follows from them. So whatever a drill finds is about
//! that one handler. `docs/variants.md` says what to watch, and what was left out.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use broker::{Endpoint, Link, Publisher, topology};
use orders::{CONSUMER, FollowOrders, PREFIX, Settings};
use runtime::{Health, Needed, Supervisor, database, http, settings, telemetry};
use service::{Intake, Relays, Subscription};
use tokio_util::sync::CancellationToken;

use crate::shop::{OrderRequest, Shop};

mod dual_write;
mod notify_in_transaction;
mod publish_then_commit;
mod shop;

#[derive(Clone, Copy)]
enum Variant {
    DualWrite,
    PublishThenCommit,
    NotifyInTransaction,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let variant = match std::env::var("VARIANT").context("VARIANT says which")?.as_str() {
        "dual-write" => Variant::DualWrite,
        "publish-then-commit" => Variant::PublishThenCommit,
        "notify-in-transaction" => Variant::NotifyInTransaction,
        other => bail!("there is no variant `{other}`"),
    };
    let settings: Settings = settings::load(PREFIX);
    let ground = &settings.ground;
    let endpoint = Endpoint::new(&ground.amqp_url, "orders")?;
    let metrics = telemetry::start(&ground.log, ground.log_format)?;
    let listener = http::bind("ORDERS_HTTP_ADDRESS", settings.http_address);
    let stop = CancellationToken::new();
    let mut tasks = Supervisor::new(stop.clone());
    tasks.spawn_infallible("metrics", telemetry::upkeep(metrics.clone(), stop.clone()));

    let real = orders::Shop::new(&settings);
    let subscription = Subscription { queue: topology::ORDERS, consumer: CONSUMER };
    let intake = Intake::new(subscription, endpoint.clone(), ground, &settings.consuming);
    let relays = Relays::new(endpoint.clone(), ground, &settings.publishing);
    let health = Health::new().with("database", Needed::Yes, real.probe());
    if tasks.first(real.open(&settings, &stop)).await.transpose()?.is_some() {
        let connections = settings.database_connections;
        let pool =
            database::pool(&ground.database_url, "orders", connections, database::Purpose::Transactions);
        let publisher =
            Publisher::new(endpoint, Link::new("publisher"), settings.publishing.confirm_deadline);
        let shop = Shop::open(pool, publisher).await.context("cannot read the catalogue")?;
        let place = move |State(shop): State<Shop>, Json(request): Json<OrderRequest>| async move {
            place_order(variant, &shop, request).await
        };
        let app = Router::new().route("/orders", post(place)).with_state(shop);
        let app = app.merge(http::observability(health, metrics));
        tasks.spawn("http", http::serve(listener, app, stop.clone()));
        relays.start(&mut tasks, &real.wake, &stop);
        let handler = FollowOrders::new(intake.pool(), real.wake.clone());
        intake.start(&mut tasks, handler, &stop);
        tasks.spawn_infallible("database watch", real.watch(stop.clone()));
    }
    Ok(tasks.run().await)
}

async fn place_order(variant: Variant, shop: &Shop, request: OrderRequest) -> Response {
    let Some(order) = shop.price(request) else {
        return StatusCode::UNPROCESSABLE_ENTITY.into_response();
    };
    let written = match variant {
        Variant::DualWrite => dual_write::write(shop, &order).await,
        Variant::PublishThenCommit => publish_then_commit::write(shop, &order).await,
        Variant::NotifyInTransaction => notify_in_transaction::write(shop, &order).await,
    };
    match written {
        Ok(()) => (StatusCode::CREATED, Json(serde_json::json!({ "id": order.order_id }))).into_response(),
        Err(cause) => {
            tracing::warn!(order_id = %order.order_id, cause = format!("{cause:#}"), "an order failed");
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
    }
}
