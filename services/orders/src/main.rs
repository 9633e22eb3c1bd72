//! The order service: HTTP API and relay in one process.

use std::{net::SocketAddr, process::ExitCode};

use orders::{Settings, Shop, admin, api, relay};
use runtime::{Health, Needed, Supervisor, admin::Admin, http, settings, telemetry};
use tokio_util::sync::CancellationToken;

#[tokio::main]
pub(crate) async fn main() -> anyhow::Result<ExitCode> {
    if std::env::args().nth(1).as_deref() == Some("healthcheck") {
        settings::healthcheck("ORDERS_HTTP_ADDRESS", SocketAddr::from(([127, 0, 0, 1], 8080)));
    }
    let settings: Settings = settings::load("ORDERS_");
    settings.check();
    let metrics = telemetry::start(&settings.log, settings.log_format)?;
    faults::announce();
    let listener = http::bind("ORDERS_HTTP_ADDRESS", settings.http_address);
    let door = Admin::bind("ORDERS", settings.admin_address, settings.admin_token.as_ref());
    let stop = CancellationToken::new();
    let mut tasks = Supervisor::new(stop.clone());
    tasks.spawn_infallible("metrics", telemetry::upkeep(metrics.clone(), stop.clone()));

    // The API answers from the first moment on: with 503 until the database is there, and so does its health.
    let shop = Shop::new(&settings);
    let relays = relay::Relays::new(&settings);
    let health =
        Health::new().with("database", Needed::Yes, shop.probe()).with("broker", Needed::No, relays.probe());
    let app = api::router(shop.clone()).merge(http::observability(health, metrics));
    tasks.spawn("http", http::serve(listener, app, stop.clone()));

    // Everything else needs the schema, so it waits for the database; and a broker that refuses us is found out now.
    if tasks.first(shop.open(&settings, &stop)).await.transpose()?.is_some()
        && tasks.first(relays.check()).await.is_some()
    {
        tasks.spawn_infallible("database watch", shop.clone().watch(stop.clone()));
        if let Some(door) = door {
            tasks.spawn("admin", door.serve(admin::routes(&settings, shop.wake.clone()), stop.clone()));
        }
        relays.start(&mut tasks, &shop.wake, &stop);
    }
    Ok(tasks.run().await)
}
