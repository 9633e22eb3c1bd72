use std::net::SocketAddr;

use clap::Parser;
use database::DatabaseUrl;
use service::telemetry::{self, LogFormat};

/// Settings of the payment provider, from environment variables.
#[derive(Debug, Clone, Parser)]
#[command(name = "payment-provider", version)]
pub struct Settings {
    /// The database, as the login `provider`: postgres://provider:password@host:5432/shop.
    #[arg(long, hide_env_values = true)]
    pub database_url: DatabaseUrl,

    /// The address of the API, health and metrics.
    #[arg(long, default_value = "127.0.0.1:8083")]
    pub http_address: SocketAddr,

    /// The log filter: a level, or a filter such as warn,payment_provider=debug. At info each charge and each refund is a
    /// line.
    #[arg(long, default_value = "info", value_parser = telemetry::filter)]
    pub log: String,

    /// The format of log lines.
    #[arg(long, default_value = "json")]
    pub log_format: LogFormat,

    /// Connections to the database. A request uses one at a time, and none while a fault makes it wait.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=100))]
    pub database_connections: u32,
}
