use std::{net::SocketAddr, time::Duration};

use clap::Parser;
use runtime::{
    admin::Token,
    database::DatabaseUrl,
    settings,
    telemetry::{self, LogFormat},
};

/// Settings of the order service. Each is an environment variable; a wrong or unknown one ends the start.
#[derive(Debug, Clone, Parser)]
#[command(name = "orders", version)]
pub struct Settings {
    /// The database, as the login `orders`: postgres://orders:password@host:5432/shop.
    #[arg(long, env = "ORDERS_DATABASE_URL", hide_env_values = true)]
    pub database_url: DatabaseUrl,

    /// The broker, with its virtual host: amqp://user:password@host:5672/shop.
    #[arg(long, env = "ORDERS_AMQP_URL", hide_env_values = true)]
    pub amqp_url: String,

    /// Where the API, the health and the metrics are served.
    #[arg(long, env = "ORDERS_HTTP_ADDRESS", default_value = "127.0.0.1:8080")]
    pub http_address: SocketAddr,

    /// Where operators are served: the routes under /admin, and nothing else. Not served at all unless this is set.
    #[arg(long, env = "ORDERS_ADMIN_ADDRESS")]
    pub admin_address: Option<SocketAddr>,

    /// What operators have to show: 16 characters or more.
    #[arg(long, env = "ORDERS_ADMIN_TOKEN", hide_env_values = true)]
    pub admin_token: Option<Token>,

    /// How old an event may be for an operator to have it published again without insisting. Shorter than the time for
    /// which every consumer remembers what it has applied: a copy of a forgotten event is applied a second time.
    #[arg(long, env = "ORDERS_REPLAY_WITHIN", default_value = "14days", value_parser = settings::age)]
    pub replay_within: Duration,

    /// What is logged: a level, or a filter such as warn,outbox=debug. At info every order is a line.
    #[arg(long, env = "ORDERS_LOG", default_value = "info", value_parser = telemetry::filter)]
    pub log: String,

    /// How it is logged.
    #[arg(long, env = "ORDERS_LOG_FORMAT", default_value = "json")]
    pub log_format: LogFormat,

    /// Connections for the API. Each request holds one for the time of one statement.
    #[arg(long, env = "ORDERS_DATABASE_CONNECTIONS", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=200))]
    pub database_connections: u32,

    /// Requests that are worked on at the same time; more are answered with 503 at once. They wait for a connection in
    /// memory, so this bounds the memory.
    #[arg(long, env = "ORDERS_MAX_REQUESTS", default_value_t = 512,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub max_requests: u16,

    /// Relays in this process. They share the work by lanes; while one waits for the broker's confirms, the other reads
    /// and marks.
    #[arg(long, env = "ORDERS_RELAY_WORKERS", default_value_t = 2,
          value_parser = clap::value_parser!(u8).range(1..=16))]
    pub relay_workers: u8,

    /// The most events that a relay publishes in one step.
    #[arg(long, env = "ORDERS_RELAY_BATCH", default_value_t = 500,
          value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub relay_batch: u16,

    /// How long a relay sleeps at most when nothing wakes it: 1ms to 1h.
    #[arg(long, env = "ORDERS_RELAY_POLL", default_value = "1s", value_parser = settings::duration)]
    pub relay_poll: Duration,

    /// How often a relay looks at everything that is owed, and not only ahead of what it has published: 1ms to 1h. The
    /// longest that an event whose transaction committed very late has to wait, unless full looks take long: see
    /// docs/retention.md.
    #[arg(long, env = "ORDERS_RELAY_FULL_LOOK", default_value = "3s", value_parser = settings::duration)]
    pub relay_full_look: Duration,

    /// How long published events stay in the outbox, such as 7days. They are the history of `GET /orders/{id}`, and what
    /// can be published again. What is not published stays for ever.
    #[arg(long, env = "ORDERS_KEEP_PUBLISHED", default_value = "7days", value_parser = settings::age)]
    pub keep_published: Duration,

    /// How long an `Idempotency-Key` is remembered at least, such as 1day. A client that asks again later gets a second
    /// order.
    #[arg(long, env = "ORDERS_REMEMBER_KEYS", default_value = "1day", value_parser = settings::age)]
    pub remember_keys: Duration,

    /// How long the broker may take to confirm one batch. At most 20s, because the relay holds a transaction open
    /// meanwhile, and PostgreSQL ends a session that is idle in one after 30s.
    #[arg(long, env = "ORDERS_CONFIRM_DEADLINE", default_value = "10s", value_parser = settings::duration)]
    pub confirm_deadline: Duration,
}

/// The relay begins its last wave after four seconds and closes a connection within one. That leaves five between the
/// relay giving up by itself and PostgreSQL ending its session.
const LONGEST_CONFIRM_DEADLINE: Duration = Duration::from_secs(20);

impl Settings {
    /// Ends the process over a combination that cannot work.
    pub fn check(&self) {
        if self.confirm_deadline > LONGEST_CONFIRM_DEADLINE {
            settings::refuse(
                "ORDERS_CONFIRM_DEADLINE: at most 20s, because PostgreSQL ends the relay's session after 30s",
            );
        }
        if self.keep_published > self.replay_within {
            settings::refuse(
                "ORDERS_KEEP_PUBLISHED: at most ORDERS_REPLAY_WITHIN, because what is older cannot be replayed anyway",
            );
        }
    }
}
