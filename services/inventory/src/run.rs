use std::{net::SocketAddr, process::ExitCode};

use clap::Parser;
use messaging::SharedHandler;
use service::{
    ConsumerTasks, Health, Needed, Parts, Process, RelayTasks,
    settings::{CommonSettings, ConsumerSettings, PublisherSettings, ServiceSettings},
};

use crate::{INBOX, SERVICE, StockHandler};

/// Runs the inventory service until it is stopped: it reserves stock for each order, once, and publishes the answer.
///
/// # Errors
/// When the process cannot start.
pub async fn run(parts: impl Parts) -> anyhow::Result<ExitCode> {
    let Settings { http_address, common, publisher, consumer } = service::load(&SERVICE, &parts).await?;
    let mut process = Process::start(&SERVICE, http_address, common)?;
    let relays = RelayTasks::new(&process, publisher);
    let consumer = ConsumerTasks::new(&process, INBOX, consumer);
    let health = Health::new()
        .with("database", Needed::Yes, parts.database(process.database()))
        .with("broker", Needed::Yes, consumer.probe())
        .with("relays", Needed::No, relays.probe())
        .with("dead letters", Needed::No, consumer.collector_probe());
    process.serve_health(health);

    if process.prepare().await {
        let handler = SharedHandler::new(StockHandler::new(consumer.pool(), relays.wake()));
        process.watch_database();
        process.serve_admin(consumer.admin_routes(handler.clone()).merge(relays.admin_routes()));
        parts.start_relays(relays, &mut process).await?;
        parts.start_consumer(consumer, handler, &mut process).await;
    }
    Ok(process.run().await)
}

/// Settings of the inventory service, from environment variables.
#[derive(Clone, Parser)]
#[command(name = "inventory", version)]
pub struct Settings {
    /// The address of health and metrics.
    #[arg(long, default_value = "127.0.0.1:8081")]
    pub http_address: SocketAddr,

    #[command(flatten)]
    pub common: CommonSettings,

    #[command(flatten)]
    pub publisher: PublisherSettings,

    #[command(flatten)]
    pub consumer: ConsumerSettings,
}

impl ServiceSettings for Settings {
    fn common(&mut self) -> &mut CommonSettings {
        &mut self.common
    }

    fn check(&self, prefix: &str) -> Result<(), String> {
        self.publisher.check(prefix, &self.common)?;
        self.consumer.check(prefix, &self.common)?;
        Ok(())
    }
}
