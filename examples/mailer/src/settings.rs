use std::net::SocketAddr;

use clap::Parser;
use service::settings::{CommonSettings, ConsumerSettings, ServiceSettings};

/// Settings of the mailer, from environment variables.
#[derive(Clone, Parser)]
#[command(name = "mailer", version)]
pub struct Settings {
    /// The address of health and metrics.
    #[arg(long, default_value = "127.0.0.1:8084")]
    pub http_address: SocketAddr,

    #[command(flatten)]
    pub common: CommonSettings,

    #[command(flatten)]
    pub consumer: ConsumerSettings,
}

impl ServiceSettings for Settings {
    fn check(&self, prefix: &str) -> Result<(), String> {
        self.consumer.check(prefix, &self.common)
    }
}
