//! How the lab programs put their parts together.

use std::{env, time::Duration};

use axum::{Router, extract::Request, http::HeaderValue, middleware::map_request};
use broker::Publisher;
use database::Pool;
use messaging::SharedHandler;
use outbox::{Relay, RelayOptions};
use service::{ConsumerTasks, Process};
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    Sabotage, crash, dead_letters::LabDeadLetters, handler::LabHandler, publisher::LabPublisher,
    store::LabStore,
};

/// How often `short-memory` erases the records of processed events.
const ERASE_INTERVAL: Duration = Duration::from_secs(1);

/// The protection that `SABOTAGE` leaves out. An unknown name ends the process with exit code 78.
pub fn sabotage_from_env() -> Option<Sabotage> {
    let wanted = env::var("SABOTAGE").ok()?;
    let known = Sabotage::ALL.into_iter().find(|known| known.name() == wanted);
    Some(known.unwrap_or_else(|| crash::exit_invalid("SABOTAGE: there is no such sabotage")))
}

/// Makes relays with the sabotaged parts, for `RelayTasks::start_with`.
pub fn relay(
    sabotage: Option<Sabotage>,
) -> impl Fn(Pool, Publisher, RelayOptions) -> Relay<LabPublisher<Publisher>, LabStore> {
    move |pool, publisher, options| {
        let store = LabStore::new(pool, &options, sabotage);
        Relay::over(store, LabPublisher::new(publisher, sabotage), options)
    }
}

/// The routes of an API; with `new-key-per-attempt`, each request's `Idempotency-Key` is made unique.
pub fn api(sabotage: Option<Sabotage>, routes: Router) -> Router {
    if sabotage != Some(Sabotage::NewKeyPerAttempt) {
        return routes;
    }
    routes.layer(map_request(async |mut request: Request| {
        if let Some(key) = request.headers_mut().get_mut("idempotency-key") {
            let unique = format!("{}-{}", key.to_str().unwrap_or_default(), Uuid::new_v4());
            *key = HeaderValue::from_str(&unique).unwrap_or_else(|_| key.clone());
        }
        request
    }))
}

/// Whether the database can be used; with `hanging-commits-ignored`, whether it answers reads.
pub fn database(
    sabotage: Option<Sabotage>,
    probe: impl Fn() -> Result<(), String> + Send + Sync + 'static,
) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
    move || match probe() {
        Err(reason) if sabotage == Some(Sabotage::HangingCommitsIgnored) && reason.contains("commits") => {
            Ok(())
        }
        state => state,
    }
}

/// Tells whether all answers that wait in the queue are applied; with `limit-by-time-alone` it always says so.
pub fn caught_up(
    sabotage: Option<Sabotage>,
    consumer: impl Fn() -> bool + Send + Sync + 'static,
) -> impl Fn() -> bool + Send {
    move || sabotage == Some(Sabotage::LimitByTimeAlone) || consumer()
}

/// Starts a consumer with the sabotaged parts.
pub async fn run_consumer(
    process: &mut Process,
    tasks: ConsumerTasks,
    consumer: &'static str,
    handler: SharedHandler,
    sabotage: Option<Sabotage>,
) {
    let pool = tasks.pool();
    if sabotage == Some(Sabotage::ShortMemory) {
        let mut retention = inbox::retention(pool.clone(), consumer, Duration::ZERO);
        let stop = process.stop();
        let mut erase = async move || {
            if let Err(error) = retention.round().await {
                tracing::warn!(%error, "failed to erase processed events");
            }
        };
        // Before the first message: what was being processed when the process died comes at once.
        erase().await;
        let erasing = async move {
            let rounds = async {
                loop {
                    erase().await;
                    sleep(ERASE_INTERVAL).await;
                }
            };
            stop.run_until_cancelled(rounds).await;
        };
        process.spawn("short memory", erasing);
    }
    let handler = SharedHandler::new(LabHandler::new(handler, pool, consumer, sabotage));
    tasks.start_with(process, handler, |letters| LabDeadLetters::new(letters, sabotage));
}
