//! What a service has to be told. Each setting is an environment variable: the service's prefix, and the name of the
//! field in capitals.

use std::{net::SocketAddr, time::Duration};

use clap::Args;
use runtime::{
    admin::Token,
    database::DatabaseUrl,
    settings::{age, duration, refuse},
    telemetry::{self, LogFormat},
};

/// What it stands on, and who may look after it.
#[derive(Debug, Clone, Args)]
pub struct Ground {
    /// The database, as the service's own login: postgres://login:password@host:5432/shop.
    #[arg(long, hide_env_values = true)]
    pub database_url: DatabaseUrl,

    /// The broker, with its virtual host: amqp://user:password@host:5672/shop.
    #[arg(long, hide_env_values = true)]
    pub amqp_url: String,

    /// Where operators are served: the routes under /admin, and nothing else. Not served at all unless this is set.
    #[arg(long)]
    pub admin_address: Option<SocketAddr>,

    /// What operators have to show: 16 characters or more.
    #[arg(long, hide_env_values = true)]
    pub admin_token: Option<Token>,

    /// How old an event may be for an operator to have it published or applied again without insisting. Shorter than the
    /// time for which consumers remember what they have applied: a copy of a forgotten event is applied a second time.
    #[arg(long, default_value = "14days", value_parser = age)]
    pub replay_within: Duration,

    /// What is logged: a level, or a filter such as warn,outbox=debug. At info every order and every event is a line.
    #[arg(long, default_value = "info", value_parser = telemetry::filter)]
    pub log: String,

    /// How it is logged.
    #[arg(long, default_value = "json")]
    pub log_format: LogFormat,
}

/// How it publishes.
#[derive(Debug, Clone, Args)]
pub struct Publishing {
    /// Relays in this process. They share the work by lanes; while one waits for the broker's confirms, the other reads
    /// and marks.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub relay_workers: u8,

    /// The most events that a relay publishes in one step.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub relay_batch: u16,

    /// How long a relay sleeps at most when nothing wakes it: 1ms to 1h.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub relay_poll: Duration,

    /// How often a relay looks at everything that is owed, and not only ahead of what it has published: 1ms to 1h. The
    /// longest that an event whose transaction committed very late has to wait, unless full looks take long: see
    /// docs/retention.md.
    #[arg(long, default_value = "3s", value_parser = duration)]
    pub relay_full_look: Duration,

    /// How long published events stay in the outbox, such as 7days: what can be published again, and in the order service
    /// the history of `GET /orders/{id}`. What is not published stays for ever.
    #[arg(long, default_value = "7days", value_parser = age)]
    pub keep_published: Duration,

    /// How long the broker may take to confirm one batch. At most 20s, because the relay holds a transaction open
    /// meanwhile, and PostgreSQL ends a session that is idle in one after 30s.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub confirm_deadline: Duration,
}

/// How it consumes.
#[derive(Debug, Clone, Args)]
pub struct Consuming {
    /// Connections to the database. The consumer uses one at a time, its collector of dead letters another; the health
    /// check (in the order service the keys' retention), the retention, the count of dead letters and operators need one now and then.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=100))]
    pub consumer_connections: u32,

    /// How many unacknowledged messages the broker may hand over at a time.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub prefetch: u16,

    /// How long it is remembered that an event was processed, such as 30days. A copy that arrives later is applied again:
    /// longer than an event can be published again (docs/retention.md), and at least a day.
    #[arg(long, default_value = "30days", value_parser = age)]
    pub remember: Duration,
}

/// The relay begins its last wave after four seconds and closes a connection within one. That leaves five between the
/// relay giving up by itself and PostgreSQL ending its session.
const LONGEST_CONFIRM_DEADLINE: Duration = Duration::from_secs(20);

/// Without any operator, a copy comes as late as the longest outage between a confirm and its mark.
const SHORTEST_MEMORY: Duration = Duration::from_secs(24 * 3600);

impl Publishing {
    /// Ends the process over a combination that cannot work. `prefix` is that of the service's variables, such as
    /// `ORDERS_`.
    pub fn check(&self, prefix: &str, ground: &Ground) {
        if self.confirm_deadline > LONGEST_CONFIRM_DEADLINE {
            refuse(&format!(
                "{prefix}CONFIRM_DEADLINE: at most 20s, because PostgreSQL ends the relay's session after 30s"
            ));
        }
        if self.keep_published > ground.replay_within {
            refuse(&format!(
                "{prefix}KEEP_PUBLISHED: at most {prefix}REPLAY_WITHIN, because what is older cannot be replayed anyway"
            ));
        }
    }
}

impl Consuming {
    /// As for [`Publishing::check`].
    pub fn check(&self, prefix: &str, ground: &Ground) {
        if self.remember < SHORTEST_MEMORY {
            refuse(&format!(
                "{prefix}REMEMBER: at least 1day, because a copy that arrives after an outage would be applied again"
            ));
        }
        if self.remember <= ground.replay_within {
            refuse(&format!(
                "{prefix}REMEMBER: longer than {prefix}REPLAY_WITHIN, because a replay of what is forgotten is applied again"
            ));
        }
    }
}
