//! The inventory service: puts stock aside for each order, once, and says so.

use std::{net::SocketAddr, process::ExitCode};

use broker::{Endpoint, topology};
use inventory::{CONSUMER, KeepStock, MIGRATIONS, PREFIX, Settings};
use outbox::Wake;
use runtime::{
    Health, Needed, Supervisor,
    admin::Admin,
    database::{self, DatabaseState},
    http, settings, telemetry,
};
use service::{Intake, Relays, Subscription};
use tokio_util::sync::CancellationToken;

#[tokio::main]
pub(crate) async fn main() -> anyhow::Result<ExitCode> {
    if std::env::args().nth(1).as_deref() == Some("healthcheck") {
        settings::healthcheck("INVENTORY_HTTP_ADDRESS", SocketAddr::from(([127, 0, 0, 1], 8081)));
    }
    let settings: Settings = settings::load(PREFIX);
    settings.check();
    let ground = &settings.ground;
    let endpoint = Endpoint::new(&ground.amqp_url, "inventory")
        .unwrap_or_else(|error| settings::refuse(&format!("INVENTORY_AMQP_URL: {error}")));
    let metrics = telemetry::start(&ground.log, ground.log_format)?;
    faults::announce();
    let listener = http::bind("INVENTORY_HTTP_ADDRESS", settings.http_address);
    let door = Admin::bind("INVENTORY", ground.admin_address, ground.admin_token.as_ref());
    let stop = CancellationToken::new();
    let mut tasks = Supervisor::new(stop.clone());
    tasks.spawn_infallible("metrics", telemetry::upkeep(metrics.clone(), stop.clone()));

    // Health is served from the first moment on, and tells what is still missing.
    let subscription = Subscription { queue: topology::INVENTORY, consumer: CONSUMER };
    let intake = Intake::new(subscription, endpoint.clone(), ground, &settings.consuming);
    let relays = Relays::new(endpoint.clone(), ground, &settings.publishing);
    let database = DatabaseState::default();
    let health = Health::new()
        .with("database", Needed::Yes, database.probe())
        .with("broker", Needed::Yes, intake.probe())
        .with("relays", Needed::No, relays.probe());
    tasks.spawn("http", http::serve(listener, http::observability(health, metrics), stop.clone()));

    // Nothing is consumed before the tables are there, and a broker that refuses us is found out now.
    let prepared = database::prepare(&ground.database_url, "INVENTORY_DATABASE_URL", &MIGRATIONS, &stop);
    if tasks.first(prepared).await == Some(true)
        && let Some(checked) = tasks.first(endpoint.check()).await
    {
        checked.unwrap_or_else(|error| settings::refuse(&format!("INVENTORY_AMQP_URL: {error}")));
        database.set_up();
        let (pool, wake) = (intake.pool(), Wake::new());
        let handler = KeepStock::new(pool.clone(), wake.clone());
        if let Some(door) = door {
            let routes = intake.admin(handler.clone()).merge(relays.admin(&wake));
            tasks.spawn("admin", door.serve(routes, stop.clone()));
        }
        relays.start(&mut tasks, &wake, &stop);
        intake.start(&mut tasks, handler, &stop);
        tasks.spawn_infallible("database watch", database.watch(pool, stop.clone()));
    }
    Ok(tasks.run().await)
}
