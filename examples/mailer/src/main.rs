//! The mailer: writes a mail when an order is confirmed or cancelled, once.

use std::process::ExitCode;

use mailer::{INBOX, MailHandler, SERVICE, Settings};
use messaging::SharedHandler;
use service::{ConsumerTasks, Health, Needed, Process};

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let Settings { http_address, common, consumer } = service::load(&SERVICE);
    let mut process = Process::start(&SERVICE, http_address, common)?;
    let consumer = ConsumerTasks::new(&process, INBOX, consumer);
    let health = Health::new().with("database", Needed::Yes, process.database()).with(
        "broker",
        Needed::Yes,
        consumer.probe(),
    );
    process.serve_health(health);

    if process.prepare().await {
        let handler = SharedHandler::new(MailHandler::new(consumer.pool()));
        process.watch_database();
        process.serve_admin(consumer.admin_routes(handler.clone()));
        consumer.start(&mut process, &handler);
    }
    Ok(process.run().await)
}
