use std::net::SocketAddr;

use clap::Parser;
use service::settings::{CommonSettings, ConsumerSettings};

use crate::SERVICE;

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

impl Settings {
    /// Ends the process if the combination cannot work.
    pub fn check(&self) {
        self.consumer.check(SERVICE.prefix, &self.common);
    }
}
