use std::net::SocketAddr;

use clap::Parser;
use service::settings::{CommonSettings, ConsumerSettings, PublisherSettings};

use crate::SERVICE;

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

impl Settings {
    /// Ends the process if the combination cannot work.
    pub fn check(&self) {
        self.publisher.check(SERVICE.prefix, &self.common);
        self.consumer.check(SERVICE.prefix, &self.common);
    }
}
