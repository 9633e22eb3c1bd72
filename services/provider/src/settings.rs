use std::net::SocketAddr;

use clap::Parser;
use runtime::{
    database::DatabaseUrl,
    telemetry::{self, LogFormat},
};

/// Settings of the payment provider. Each is an environment variable; a wrong or unknown one ends the start.
#[derive(Debug, Clone, Parser)]
#[command(name = "provider", version)]
pub struct Settings {
    /// The database, as the login `provider`: postgres://provider:password@host:5432/shop.
    #[arg(long, hide_env_values = true)]
    pub database_url: DatabaseUrl,

    /// Where charges, refunds, faults, the health and the metrics are served.
    #[arg(long, default_value = "127.0.0.1:8083")]
    pub http_address: SocketAddr,

    /// What is logged: a level, or a filter such as warn,provider=debug. At info every charge and refund is a line.
    #[arg(long, default_value = "info", value_parser = telemetry::filter)]
    pub log: String,

    /// How it is logged.
    #[arg(long, default_value = "json")]
    pub log_format: LogFormat,

    /// Connections to the database. A request uses one at a time, and none while a fault makes it wait.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=100))]
    pub database_connections: u32,
}
