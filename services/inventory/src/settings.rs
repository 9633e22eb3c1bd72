use std::net::SocketAddr;

use clap::Parser;
use service::settings::{CommonSettings, ConsumerSettings, PublisherSettings, ServiceSettings};

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
