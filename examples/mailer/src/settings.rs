use std::net::SocketAddr;

use clap::Parser;
use service::settings::{Consuming, Ground};

/// What all variables of this service begin with.
pub const PREFIX: &str = "MAILER_";

/// Settings of the mailer. Each is an environment variable; a wrong or unknown one ends the start.
#[derive(Debug, Clone, Parser)]
#[command(name = "mailer", version)]
pub struct Settings {
    /// Where the health and the metrics are served.
    #[arg(long, default_value = "127.0.0.1:8084")]
    pub http_address: SocketAddr,

    /// What every service stands on.
    #[command(flatten)]
    pub ground: Ground,

    /// How it consumes.
    #[command(flatten)]
    pub consuming: Consuming,
}

impl Settings {
    /// Ends the process over settings that cannot work.
    pub fn check(&self) {
        self.consuming.check(PREFIX, &self.ground);
    }
}
