//! How the lab programs put their parts together.

use std::{env, time::Duration};

use axum::{Router, extract::Request, http::HeaderValue, middleware::map_request};
use database::Pool;
use messaging::SharedHandler;
use outbox::Relay;
use service::{ConsumerTasks, Parts, Process, RelayTasks, settings::CommonSettings};
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    Sabotage, cancels::ignore_cancels, crash, dead_letters::LabDeadLetters, handler::LabHandler,
    publisher::LabPublisher, store::LabStore,
};

/// How often `short-memory` erases the records of processed events.
const ERASE_INTERVAL: Duration = Duration::from_secs(1);

/// The product's parts with the one replaced that `SABOTAGE` names. Without it all are the product's.
#[derive(Debug, Clone, Copy)]
pub struct LabParts(Option<Sabotage>);

impl LabParts {
    /// Reads `SABOTAGE` and arms the crash point of `CRASH_POINT`. An unknown name ends the process with exit code 78.
    pub fn from_env() -> Self {
        crash::arm_from_env();
        let known = |wanted: String| Sabotage::ALL.into_iter().find(|known| known.name() == wanted);
        Self(env::var("SABOTAGE").ok().map(|wanted| {
            known(wanted).unwrap_or_else(|| crash::exit_invalid("SABOTAGE: there is no such sabotage"))
        }))
    }

    pub fn sabotage(self) -> Option<Sabotage> {
        self.0
    }
}

impl Parts for LabParts {
    async fn settings(&self, common: &mut CommonSettings) -> anyhow::Result<()> {
        if self.0 == Some(Sabotage::CancelIgnored) {
            ignore_cancels(&mut common.amqp_url).await
        } else {
            Ok(())
        }
    }

    /// With `hanging-commits-ignored`: whether it answers reads.
    fn database(
        &self,
        probe: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let ignored = self.0 == Some(Sabotage::HangingCommitsIgnored);
        move || match probe() {
            Err(reason) if ignored && reason.contains("commits") => Ok(()),
            state => state,
        }
    }

    /// With `limit-by-time-alone`: always.
    fn caught_up(
        &self,
        probe: impl Fn() -> bool + Send + Sync + 'static,
    ) -> impl Fn() -> bool + Send + Sync + 'static {
        let always = self.0 == Some(Sabotage::LimitByTimeAlone);
        move || always || probe()
    }

    async fn start_relays(&self, relays: RelayTasks, process: &mut Process) -> anyhow::Result<()> {
        relays.start(process, |pool, publisher, options| {
            let store = LabStore::new(pool, &options, self.0);
            Relay::over(store, LabPublisher::new(publisher, self.0), options)
        });
        Ok(())
    }

    async fn start_consumer(&self, consumer: ConsumerTasks, handler: SharedHandler, process: &mut Process) {
        let (pool, name) = (consumer.pool(), consumer.inbox.consumer);
        if self.0 == Some(Sabotage::ShortMemory) {
            forget_soon(pool.clone(), name, process).await;
        }
        let handler = SharedHandler::new(LabHandler::new(handler, pool, name, self.0));
        consumer.start(process, handler, |letters| LabDeadLetters::new(letters, self.0));
    }
}

/// Erases the records of processed events, now and each second.
async fn forget_soon(pool: Pool, consumer: &'static str, process: &mut Process) {
    let mut retention = inbox::retention(pool, consumer, Duration::ZERO);
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
