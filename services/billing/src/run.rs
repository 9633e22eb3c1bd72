use std::{process::ExitCode, sync::Arc};

use messaging::SharedHandler;
use service::{ConsumerTasks, Health, Needed, Parts, Process, RelayTasks};
use tokio::sync::Notify;

use crate::{HttpPaymentProvider, INBOX, PaymentHandler, PaymentProvider, PaymentWorker, SERVICE, Settings};

/// Runs the billing service until it is stopped: it charges each order once, and publishes the answer. `provider` is given the
/// product's payment provider and returns the one to call.
///
/// # Errors
/// When the process cannot start.
pub async fn run<P: PaymentProvider>(
    parts: impl Parts,
    provider: impl FnOnce(HttpPaymentProvider) -> P,
) -> anyhow::Result<ExitCode> {
    let settings: Settings = service::load(&SERVICE, &parts).await?;
    let mut process = Process::start(&SERVICE, settings.http_address, settings.common.clone())?;
    let http = HttpPaymentProvider::new(settings.provider_url.clone(), settings.provider_deadline)?;
    let relays = RelayTasks::new(&process, settings.publisher.clone());
    let consumer = ConsumerTasks::new(&process, INBOX, settings.consumer.clone());
    let health = Health::new()
        .with("database", Needed::Yes, parts.database(process.database()))
        .with("broker", Needed::Yes, consumer.probe())
        .with("relays", Needed::No, relays.probe())
        .with("dead letters", Needed::No, consumer.collector_probe());
    process.serve_health(health);

    if process.prepare().await {
        let payments_due = Arc::new(Notify::new());
        let handler = SharedHandler::new(PaymentHandler::new(consumer.pool(), payments_due.clone()));
        process.watch_database();
        process.serve_admin(consumer.admin_routes(handler.clone()).merge(relays.admin_routes()));
        let worker = PaymentWorker::new(&settings, provider(http), relays.wake(), payments_due);
        process.spawn("pending payments", worker.clone().observe(process.stop()));
        process.spawn("payment worker", worker.run(process.stop()));
        parts.start_relays(relays, &mut process).await?;
        parts.start_consumer(consumer, handler, &mut process).await;
    }
    Ok(process.run().await)
}
