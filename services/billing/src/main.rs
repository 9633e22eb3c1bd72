//! The billing service: charges each order once, and publishes the answer.

use std::{process::ExitCode, sync::Arc};

use billing::{HttpPaymentProvider, INBOX, PaymentHandler, PaymentWorker, SERVICE, Settings};
use messaging::SharedHandler;
use service::{ConsumerTasks, Health, Needed, Process, RelayTasks};
use tokio::sync::Notify;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let settings: Settings = service::load(&SERVICE);
    settings.check();
    let common = &settings.common;
    let mut process = Process::start(&SERVICE, settings.http_address, common)?;
    let provider = HttpPaymentProvider::new(settings.provider_url.clone(), settings.provider_deadline)?;
    let relays = RelayTasks::new(&process, common, &settings.publisher);
    let consumer = ConsumerTasks::new(&process, INBOX, common, &settings.consumer);
    let health = Health::new()
        .with("database", Needed::Yes, process.database())
        .with("broker", Needed::Yes, consumer.probe())
        .with("relays", Needed::No, relays.probe())
        .with("dead letters", Needed::No, consumer.collector_probe());
    process.serve_health(health);

    if process.prepare().await {
        let payments_due = Arc::new(Notify::new());
        let handler = SharedHandler::new(PaymentHandler::new(consumer.pool(), payments_due.clone()));
        process.watch_database();
        process.serve_admin(consumer.admin_routes(handler.clone()).merge(relays.admin_routes()));
        let worker = PaymentWorker::new(&settings, provider, relays.wake(), payments_due);
        process.spawn("pending payments", worker.clone().observe(process.stop()));
        process.spawn("payment worker", worker.run(process.stop()));
        relays.start(&mut process);
        consumer.start(&mut process, handler);
    }
    Ok(process.run().await)
}
