//! The payment provider: charges and refunds over HTTP, with faults on demand.

use std::process::ExitCode;

use database::{DatabaseHealth, Pool, PoolKind};
use payment_provider::{MIGRATIONS, Provider, Settings, router};
use service::{Health, Needed, Supervisor, environment, http, telemetry};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    service::request_if_asked("PROVIDER_", 8083);
    let settings: Settings = environment::load("PROVIDER_");
    let metrics = telemetry::start(&settings.log, settings.log_format)?;
    let listener = http::bind("PROVIDER_HTTP_ADDRESS", settings.http_address);
    let stop = CancellationToken::new();
    let mut tasks = Supervisor::new(stop.clone());
    tasks.spawn_infallible("metrics", telemetry::upkeep(metrics.clone(), stop.clone()));

    // The API and the health check answer from the first moment on: with 503 until the tables exist.
    let database = DatabaseHealth::default();
    let health = Health::new().with("database", Needed::Yes, database.probe());
    let (url, connections) = (&settings.database_url, settings.database_connections);
    let pool = Pool::new(url, "provider", connections, PoolKind::Statements);
    let app = router(Provider::new(pool)).merge(http::observability(health, metrics));
    tasks.spawn("http", http::serve(listener, app, stop.clone()));

    match tasks.run_until_stop(database::prepare(url, &MIGRATIONS, &stop)).await {
        Some(Ok(true)) => {
            database.set_prepared();
            tasks.spawn_infallible("database watch", database.watch(url.clone(), stop));
        }
        Some(Ok(false)) | None => {}
        Some(Err(invalid)) => {
            environment::exit_invalid_config(&format!("PROVIDER_DATABASE_URL: {}", invalid.0))
        }
    }
    Ok(tasks.run().await)
}
