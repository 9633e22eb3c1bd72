//! The order service: HTTP API, relays and the orders' life in one process.

use std::{net::SocketAddr, process::ExitCode};

use broker::{Endpoint, topology};
use orders::{CONSUMER, FollowOrders, PREFIX, Settings, Shop, api, idempotency_key, open_orders};
use runtime::{Health, Needed, Supervisor, admin::Admin, http, settings, telemetry};
use service::{Intake, Relays, Subscription};
use tokio_util::sync::CancellationToken;

#[tokio::main]
pub(crate) async fn main() -> anyhow::Result<ExitCode> {
    if std::env::args().nth(1).as_deref() == Some("healthcheck") {
        settings::healthcheck("ORDERS_HTTP_ADDRESS", SocketAddr::from(([127, 0, 0, 1], 8080)));
    }
    let settings: Settings = settings::load(PREFIX);
    settings.check();
    let ground = &settings.ground;
    let endpoint = Endpoint::new(&ground.amqp_url, "orders")
        .unwrap_or_else(|error| settings::refuse(&format!("ORDERS_AMQP_URL: {error}")));
    let metrics = telemetry::start(&ground.log, ground.log_format)?;
    faults::announce();
    let listener = http::bind("ORDERS_HTTP_ADDRESS", settings.http_address);
    let door = Admin::bind("ORDERS", ground.admin_address, ground.admin_token.as_ref());
    let stop = CancellationToken::new();
    let mut tasks = Supervisor::new(stop.clone());
    tasks.spawn_infallible("metrics", telemetry::upkeep(metrics.clone(), stop.clone()));

    // The API answers from the first moment on: with 503 until the database is there, and so does its health. Orders are
    // taken without a broker.
    let shop = Shop::new(&settings);
    let subscription = Subscription { queue: topology::ORDERS, consumer: CONSUMER };
    let intake = Intake::new(subscription, endpoint.clone(), ground, &settings.consuming);
    let relays = Relays::new(endpoint.clone(), ground, &settings.publishing);
    let health = Health::new()
        .with("database", Needed::Yes, shop.probe())
        .with("broker", Needed::No, relays.probe())
        .with("consumer", Needed::No, intake.probe());
    let app = api::router(shop.clone())?.merge(http::observability(health, metrics));
    tasks.spawn("http", http::serve(listener, app, stop.clone()));

    // Everything else needs the schema, so it waits for the database; and a broker that refuses us is found out now.
    if tasks.first(shop.open(&settings, &stop)).await.transpose()?.is_some()
        && let Some(checked) = tasks.first(endpoint.check()).await
    {
        checked.unwrap_or_else(|error| settings::refuse(&format!("ORDERS_AMQP_URL: {error}")));
        let handler = FollowOrders::new(intake.pool(), shop.wake.clone());
        if let Some(door) = door {
            let routes = intake.admin(handler.clone()).merge(relays.admin(&shop.wake));
            tasks.spawn("admin", door.serve(routes.merge(open_orders::admin(intake.pool())), stop.clone()));
        }
        relays.start(&mut tasks, &shop.wake, &stop);
        let pool = intake.pool();
        let keys = idempotency_key::forget(pool, settings.remember_keys, stop.clone());
        tasks.spawn_infallible("key retention", keys);
        let open = open_orders::watch(shop.clone(), settings.answer_within, intake.probe(), stop.clone());
        intake.start(&mut tasks, handler, &stop);
        tasks.spawn_infallible("open orders", open);
        tasks.spawn_infallible("database watch", shop.watch(stop.clone()));
    }
    Ok(tasks.run().await)
}
