//! The mailer: writes a mail when an order has come to its end, once.

use std::process::ExitCode;

use broker::Endpoint;
use mailer::{CONSUMER, MIGRATIONS, PREFIX, QUEUE, Settings, WriteMails};
use runtime::{
    Health, Needed, Supervisor,
    admin::Admin,
    database::{self, DatabaseState},
    http, settings, telemetry,
};
use service::{Intake, Subscription};
use tokio_util::sync::CancellationToken;

#[tokio::main]
pub(crate) async fn main() -> anyhow::Result<ExitCode> {
    let settings: Settings = settings::load(PREFIX);
    settings.check();
    let ground = &settings.ground;
    let endpoint = Endpoint::new(&ground.amqp_url, "mailer")
        .unwrap_or_else(|error| settings::refuse(&format!("MAILER_AMQP_URL: {error}")))
        .with_queue(QUEUE);
    let metrics = telemetry::start(&ground.log, ground.log_format)?;
    let listener = http::bind("MAILER_HTTP_ADDRESS", settings.http_address);
    let door = Admin::bind("MAILER", ground.admin_address, ground.admin_token.as_ref());
    let stop = CancellationToken::new();
    let mut tasks = Supervisor::new(stop.clone());
    tasks.spawn_infallible("metrics", telemetry::upkeep(metrics.clone(), stop.clone()));

    // Health is served from the first moment on, and tells what is still missing.
    let subscription = Subscription { queue: QUEUE.name, consumer: CONSUMER };
    let intake = Intake::new(subscription, endpoint.clone(), ground, &settings.consuming);
    let database = DatabaseState::default();
    let health = Health::new().with("database", Needed::Yes, database.probe()).with(
        "broker",
        Needed::Yes,
        intake.probe(),
    );
    tasks.spawn("http", http::serve(listener, http::observability(health, metrics), stop.clone()));

    // Nothing is consumed before the tables are there, and a broker that refuses us is found out now.
    let prepared = database::prepare(&ground.database_url, "MAILER_DATABASE_URL", &MIGRATIONS, &stop);
    if tasks.first(prepared).await == Some(true)
        && let Some(checked) = tasks.first(endpoint.check()).await
    {
        checked.unwrap_or_else(|error| settings::refuse(&format!("MAILER_AMQP_URL: {error}")));
        database.set_up();
        let pool = intake.pool();
        let handler = WriteMails::new(pool.clone());
        if let Some(door) = door {
            tasks.spawn("admin", door.serve(intake.admin(handler.clone()), stop.clone()));
        }
        intake.start(&mut tasks, handler, &stop);
        tasks.spawn_infallible("database watch", database.watch(pool, stop.clone()));
    }
    Ok(tasks.run().await)
}
