//! The payment provider's process.

use std::{net::SocketAddr, process::ExitCode};

use provider::{MIGRATIONS, Provider, Settings};
use runtime::{
    Health, Needed, Supervisor,
    database::{self, DatabaseState, Purpose},
    http, settings, telemetry,
};
use tokio_util::sync::CancellationToken;

#[tokio::main]
pub(crate) async fn main() -> anyhow::Result<ExitCode> {
    if std::env::args().nth(1).as_deref() == Some("healthcheck") {
        settings::healthcheck("PROVIDER_HTTP_ADDRESS", SocketAddr::from(([127, 0, 0, 1], 8083)));
    }
    let settings: Settings = settings::load("PROVIDER_");
    let metrics = telemetry::start(&settings.log, settings.log_format)?;
    let listener = http::bind("PROVIDER_HTTP_ADDRESS", settings.http_address);
    let stop = CancellationToken::new();
    let mut tasks = Supervisor::new(stop.clone());
    tasks.spawn_infallible("metrics", telemetry::upkeep(metrics.clone(), stop.clone()));

    // The API answers from the first moment on: with 503 until the tables are there, and so does the health.
    let state = DatabaseState::default();
    let health = Health::new().with("database", Needed::Yes, state.probe());
    let (url, connections) = (&settings.database_url, settings.database_connections);
    let pool = database::pool(url, "provider", connections, Purpose::Statements);
    let app = provider::router(Provider::new(pool.clone())).merge(http::observability(health, metrics));
    tasks.spawn("http", http::serve(listener, app, stop.clone()));

    let prepared = database::prepare(url, "PROVIDER_DATABASE_URL", &MIGRATIONS, &stop);
    if tasks.first(prepared).await == Some(true) {
        state.set_up();
        tasks.spawn_infallible("database watch", state.watch(pool, stop.clone()));
    }
    Ok(tasks.run().await)
}
