use std::net::SocketAddr;

use clap::Parser;
use runtime::{
    database::DatabaseUrl,
    telemetry::{self, LogFormat},
};

/// Settings of the inventory service. Each is an environment variable; a wrong or unknown one ends the start.
#[derive(Debug, Clone, Parser)]
#[command(name = "inventory", version)]
pub struct Settings {
    /// The database, as the login `inventory`: postgres://inventory:password@host:5432/shop.
    #[arg(long, env = "INVENTORY_DATABASE_URL", hide_env_values = true)]
    pub database_url: DatabaseUrl,

    /// The broker, with its virtual host: amqp://user:password@host:5672/shop.
    #[arg(long, env = "INVENTORY_AMQP_URL", hide_env_values = true)]
    pub amqp_url: String,

    /// Where the health and the metrics are served.
    #[arg(long, env = "INVENTORY_HTTP_ADDRESS", default_value = "127.0.0.1:8081")]
    pub http_address: SocketAddr,

    /// What is logged: a level, or a filter such as warn,broker=debug. At info every event is a line.
    #[arg(long, env = "INVENTORY_LOG", default_value = "info", value_parser = telemetry::filter)]
    pub log: String,

    /// How it is logged.
    #[arg(long, env = "INVENTORY_LOG_FORMAT", default_value = "json")]
    pub log_format: LogFormat,

    /// Connections to the database. The consumer uses one at a time, and the health check another.
    #[arg(long, env = "INVENTORY_DATABASE_CONNECTIONS", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(2..=100))]
    pub database_connections: u32,

    /// How many unacknowledged messages the broker may hand over at a time.
    #[arg(long, env = "INVENTORY_PREFETCH", default_value_t = 500,
          value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub prefetch: u16,
}
