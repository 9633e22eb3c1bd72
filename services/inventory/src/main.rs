//! The inventory service: reserves stock for each order, once.

use std::{net::SocketAddr, process::ExitCode};

use broker::{Collector, Consumer, ConsumerOptions, Endpoint, Link, topology};
use inbox::{
    DeadLetters,
    operator::{self, Rules},
};
use inventory::{CONSUMER, KeepStock, MIGRATIONS, Settings};
use runtime::{
    Health, Needed, Supervisor,
    admin::Admin,
    database::{self, DatabaseState, Purpose},
    http, settings, telemetry,
};
use tokio_util::sync::CancellationToken;

#[tokio::main]
pub(crate) async fn main() -> anyhow::Result<ExitCode> {
    if std::env::args().nth(1).as_deref() == Some("healthcheck") {
        settings::healthcheck("INVENTORY_HTTP_ADDRESS", SocketAddr::from(([127, 0, 0, 1], 8081)));
    }
    let settings: Settings = settings::load("INVENTORY_");
    settings.check();
    let endpoint = Endpoint::new(&settings.amqp_url, "inventory")
        .unwrap_or_else(|error| settings::refuse(&format!("INVENTORY_AMQP_URL: {error}")));
    let metrics = telemetry::start(&settings.log, settings.log_format)?;
    faults::announce();
    let listener = http::bind("INVENTORY_HTTP_ADDRESS", settings.http_address);
    let admin = Admin::bind("INVENTORY", settings.admin_address, settings.admin_token.as_ref());
    let stop = CancellationToken::new();
    let mut tasks = Supervisor::new(stop.clone());
    tasks.spawn_infallible("metrics", telemetry::upkeep(metrics.clone(), stop.clone()));

    // Health is served from the first moment on, and tells what is still missing.
    let (state, link) = (DatabaseState::default(), Link::new("consumer"));
    let health = Health::new()
        .with("database", Needed::Yes, {
            let state = state.clone();
            move || state.state()
        })
        .with("broker", Needed::Yes, {
            let link = link.clone();
            move || link.state()
        });
    tasks.spawn("http", http::serve(listener, http::observability(health, metrics), stop.clone()));

    // Nothing is consumed before the tables are there, and a broker that refuses us is found out now.
    let pool = database::pool(
        &settings.database_url,
        "inventory",
        settings.database_connections,
        Purpose::Transactions,
    );
    let prepared = database::prepare(&settings.database_url, "INVENTORY_DATABASE_URL", &MIGRATIONS, &stop);
    if tasks.first(prepared).await == Some(true)
        && let Some(checked) = tasks.first(endpoint.check()).await
    {
        checked.unwrap_or_else(|error| settings::refuse(&format!("INVENTORY_AMQP_URL: {error}")));
        state.set_up();
        let options = ConsumerOptions { prefetch: settings.prefetch, ..ConsumerOptions::default() };
        let consumer = Consumer::new(endpoint.clone(), topology::INVENTORY, options, link);
        tasks.spawn_infallible("consumer", consumer.run(KeepStock::new(pool.clone()), stop.clone()));
        // What it cannot apply lies in a table, where an operator can look at it and have it applied again.
        let letters = DeadLetters::new(pool.clone());
        let collector = Collector::new(endpoint, topology::INVENTORY);
        tasks.spawn_infallible("collector", collector.run(letters.clone(), stop.clone()));
        tasks.spawn_infallible("dead letters", letters.observe(stop.clone()));
        let retention = inbox::Retention::new(pool.clone(), CONSUMER, settings.remember);
        tasks.spawn_infallible("retention", retention.run(stop.clone()));
        if let Some(admin) = admin {
            let rules = Rules { within: settings.replay_within, force: false };
            let routes = operator::routes(pool.clone(), KeepStock::new(pool.clone()), rules);
            tasks.spawn("admin", admin.serve(routes, stop.clone()));
        }
        tasks.spawn_infallible("database watch", state.watch(pool, stop.clone()));
    }
    Ok(tasks.run().await)
}
