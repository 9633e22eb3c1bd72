//! The billing service, composed from the lab's parts. Compare with `services/billing/src/main.rs`.

use std::{process::ExitCode, sync::Arc};

use billing::{HttpPaymentProvider, INBOX, PaymentHandler, PaymentWorker, SERVICE, Settings};
use messaging::SharedHandler;
use sabotage::provider::LabProvider;
use service::{ConsumerTasks, Health, Needed, Process, RelayTasks};
use tokio::sync::Notify;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    sabotage::crash::arm_from_env();
    let sabotage = sabotage::sabotage_from_env();
    let mut settings: Settings = service::load(&SERVICE);
    sabotage::ignore_cancels(sabotage, &mut settings.common.amqp_url).await?;
    let common = &settings.common;
    let mut process = Process::start(&SERVICE, settings.http_address, common)?;
    let provider = HttpPaymentProvider::new(settings.provider_url.clone(), settings.provider_deadline)?;
    let provider = LabProvider::new(provider, sabotage);
    let relays = RelayTasks::new(&process, common, &settings.publisher);
    let consumer = ConsumerTasks::new(&process, INBOX, common, &settings.consumer);
    process.serve_health(
        Health::new().with("database", Needed::Yes, sabotage::database(sabotage, process.database())).with(
            "broker",
            Needed::Yes,
            consumer.probe(),
        ),
    );
    if process.prepare().await {
        let payments_due = Arc::new(Notify::new());
        let handler = SharedHandler::new(PaymentHandler::new(consumer.pool(), payments_due.clone()));
        process.watch_database();
        process.serve_admin(consumer.admin_routes(handler.clone()).merge(relays.admin_routes()));
        let worker = PaymentWorker::new(&settings, provider, relays.wake(), payments_due);
        process.spawn("pending payments", worker.clone().observe(process.stop()));
        process.spawn("payment worker", worker.run(process.stop()));
        relays.start_with(&mut process, sabotage::relay(sabotage));
        sabotage::run_consumer(&mut process, consumer, INBOX.consumer, handler, sabotage).await;
    }
    Ok(process.run().await)
}
