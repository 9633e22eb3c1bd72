//! How the lab programs put their parts together.

use std::{env, time::Duration};

use broker::Publisher;
use messaging::Handler;
use outbox::{Relay, RelayOptions};
use service::{ConsumerTasks, Process};
use sqlx::PgPool;
use tokio::time::sleep;

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
) -> impl Fn(PgPool, Publisher, RelayOptions) -> Relay<LabPublisher<Publisher>, LabStore> {
    move |pool, publisher, options| {
        let store = LabStore::new(pool, &options, sabotage);
        Relay::over(store, LabPublisher::new(publisher, sabotage), options)
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
pub fn run_consumer(
    process: &mut Process,
    tasks: ConsumerTasks,
    consumer: &'static str,
    handler: impl Handler,
    sabotage: Option<Sabotage>,
) {
    let pool = tasks.pool();
    if sabotage == Some(Sabotage::ShortMemory) {
        let mut retention = inbox::retention(pool.clone(), consumer, Duration::ZERO);
        let stop = process.stop();
        let erasing = async move {
            let rounds = async {
                loop {
                    if let Err(error) = retention.round().await {
                        tracing::warn!(%error, "failed to erase processed events");
                    }
                    sleep(ERASE_INTERVAL).await;
                }
            };
            stop.run_until_cancelled(rounds).await;
        };
        process.spawn("short memory", erasing);
    }
    let handler = LabHandler::new(handler, pool, consumer, sabotage);
    tasks.start_with(process, handler, |letters| LabDeadLetters::new(letters, sabotage));
}
