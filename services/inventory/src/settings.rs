use std::net::SocketAddr;

use clap::Parser;
use service::settings::{Consuming, Ground, Publishing};

/// What all variables of this service begin with.
pub const PREFIX: &str = "INVENTORY_";

/// Settings of the inventory service. Each is an environment variable; a wrong or unknown one ends the start.
#[derive(Debug, Clone, Parser)]
#[command(name = "inventory", version)]
pub struct Settings {
    /// Where the health and the metrics are served.
    #[arg(long, default_value = "127.0.0.1:8081")]
    pub http_address: SocketAddr,

    /// What every service stands on.
    #[command(flatten)]
    pub ground: Ground,

    /// How it publishes.
    #[command(flatten)]
    pub publishing: Publishing,

    /// How it consumes.
    #[command(flatten)]
    pub consuming: Consuming,
}

impl Settings {
    /// Ends the process over settings that cannot work.
    pub fn check(&self) {
        self.publishing.check(PREFIX, &self.ground);
        self.consuming.check(PREFIX, &self.ground);
    }
}
