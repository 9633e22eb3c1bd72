//! The billing service: charges for each order, once, and says so.

use std::{net::SocketAddr, process::ExitCode, sync::Arc};

use billing::{CONSUMER, KeepAccounts, MIGRATIONS, PREFIX, Provider, Settings, Teller, TellerOptions};
use broker::{Endpoint, topology};
use outbox::Wake;
use runtime::{
    Health, Needed, Supervisor,
    admin::Admin,
    database::{self, DatabaseState, Purpose},
    http, settings, telemetry,
};
use service::{Intake, Relays, Subscription};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

#[tokio::main]
pub(crate) async fn main() -> anyhow::Result<ExitCode> {
    if std::env::args().nth(1).as_deref() == Some("healthcheck") {
        settings::healthcheck("BILLING_HTTP_ADDRESS", SocketAddr::from(([127, 0, 0, 1], 8082)));
    }
    let settings: Settings = settings::load(PREFIX);
    settings.check();
    let ground = &settings.ground;
    let endpoint = Endpoint::new(&ground.amqp_url, "billing")
        .unwrap_or_else(|error| settings::refuse(&format!("BILLING_AMQP_URL: {error}")));
    let metrics = telemetry::start(&ground.log, ground.log_format)?;
    faults::announce();
    let provider = Provider::new(settings.provider_url.clone(), settings.provider_deadline)?;
    let listener = http::bind("BILLING_HTTP_ADDRESS", settings.http_address);
    let door = Admin::bind("BILLING", ground.admin_address, ground.admin_token.as_ref());
    let stop = CancellationToken::new();
    let mut tasks = Supervisor::new(stop.clone());
    tasks.spawn_infallible("metrics", telemetry::upkeep(metrics.clone(), stop.clone()));

    // Health is served from the first moment on, and tells what is still missing.
    let subscription = Subscription { queue: topology::BILLING, consumer: CONSUMER };
    let intake = Intake::new(subscription, endpoint.clone(), ground, &settings.consuming);
    let relays = Relays::new(endpoint.clone(), ground, &settings.publishing);
    let database = DatabaseState::default();
    let health = Health::new()
        .with("database", Needed::Yes, database.probe())
        .with("broker", Needed::Yes, intake.probe())
        .with("relays", Needed::No, relays.probe());
    tasks.spawn("http", http::serve(listener, http::observability(health, metrics), stop.clone()));

    // Nothing is consumed before the tables are there, and a broker that refuses us is found out now.
    let prepared = database::prepare(&ground.database_url, "BILLING_DATABASE_URL", &MIGRATIONS, &stop);
    if tasks.first(prepared).await == Some(true)
        && let Some(checked) = tasks.first(endpoint.check()).await
    {
        checked.unwrap_or_else(|error| settings::refuse(&format!("BILLING_AMQP_URL: {error}")));
        database.set_up();
        let (pool, wake) = (intake.pool(), Wake::new());
        let bell = Arc::new(Notify::new());
        let handler = KeepAccounts::new(pool.clone(), bell.clone());
        if let Some(door) = door {
            let routes = intake.admin(handler.clone()).merge(relays.admin(&wake));
            tasks.spawn("admin", door.serve(routes, stop.clone()));
        }
        relays.start(&mut tasks, &wake, &stop);
        let calls = settings.provider_calls;
        let statements = database::pool(&ground.database_url, "teller", 8, Purpose::Statements);
        let options = TellerOptions { calls, hands_off: settings.provider_deadline * 2 };
        let teller = Teller::new(statements, provider, wake, bell, options);
        tasks.spawn_infallible("payments owed", teller.clone().observe(stop.clone()));
        tasks.spawn_infallible("teller", teller.run(stop.clone()));
        intake.start(&mut tasks, handler, &stop);
        tasks.spawn_infallible("database watch", database.watch(pool, stop.clone()));
    }
    Ok(tasks.run().await)
}
