use std::{net::SocketAddr, time::Duration};

use clap::Parser;
use runtime::{
    admin::Token,
    database::DatabaseUrl,
    settings,
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

    /// Where operators are served: the routes under /admin, and nothing else. Not served at all unless this is set.
    #[arg(long, env = "INVENTORY_ADMIN_ADDRESS")]
    pub admin_address: Option<SocketAddr>,

    /// What operators have to show: 16 characters or more.
    #[arg(long, env = "INVENTORY_ADMIN_TOKEN", hide_env_values = true)]
    pub admin_token: Option<Token>,

    /// How old an event may be for an operator to replay its dead letter without insisting. Shorter than the time for
    /// which processed events are remembered: of one that is forgotten, nobody knows whether it was applied.
    #[arg(long, env = "INVENTORY_REPLAY_WITHIN", default_value = "14days", value_parser = settings::age)]
    pub replay_within: Duration,

    /// What is logged: a level, or a filter such as warn,broker=debug. At info every event is a line.
    #[arg(long, env = "INVENTORY_LOG", default_value = "info", value_parser = telemetry::filter)]
    pub log: String,

    /// How it is logged.
    #[arg(long, env = "INVENTORY_LOG_FORMAT", default_value = "json")]
    pub log_format: LogFormat,

    /// Connections to the database. The consumer uses one at a time, its collector of dead letters another; the health
    /// check, the retention, the count of dead letters and operators need one now and then.
    #[arg(long, env = "INVENTORY_DATABASE_CONNECTIONS", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(2..=100))]
    pub database_connections: u32,

    /// How many unacknowledged messages the broker may hand over at a time.
    #[arg(long, env = "INVENTORY_PREFETCH", default_value_t = 500,
          value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub prefetch: u16,

    /// How long it is remembered that an event was processed, such as 30days. A copy that arrives later is applied again:
    /// longer than an event can be published again (docs/retention.md), and at least a day.
    #[arg(long, env = "INVENTORY_REMEMBER", default_value = "30days", value_parser = settings::age)]
    pub remember: Duration,
}

/// Without any operator, a copy comes as late as the longest outage between a confirm and its mark.
const SHORTEST_MEMORY: Duration = Duration::from_secs(24 * 3600);

impl Settings {
    /// Ends the process over settings that cannot work.
    pub fn check(&self) {
        if self.remember < SHORTEST_MEMORY {
            settings::refuse(
                "INVENTORY_REMEMBER: at least 1day, because a copy that arrives after an outage would be applied again",
            );
        }
        if self.remember <= self.replay_within {
            settings::refuse(
                "INVENTORY_REMEMBER: longer than INVENTORY_REPLAY_WITHIN, because a replay of what is forgotten is applied again",
            );
        }
    }
}
