use std::{net::SocketAddr, time::Duration};

use clap::Parser;
use runtime::settings::{age, duration, refuse};
use service::settings::{Consuming, Ground, Publishing};

/// What all variables of this service begin with.
pub const PREFIX: &str = "ORDERS_";

/// Settings of the order service. Each is an environment variable; a wrong or unknown one ends the start.
#[derive(Debug, Clone, Parser)]
#[command(name = "orders", version)]
pub struct Settings {
    /// Where the API, the health and the metrics are served.
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub http_address: SocketAddr,

    /// Connections for the API. Each request holds one for the time of one statement.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=200))]
    pub database_connections: u32,

    /// Requests that are worked on at the same time; more are answered with 503 at once. They wait for a connection in
    /// memory, so this bounds the memory.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_requests: u16,

    /// How long inventory and billing may take to answer, such as 15min or 2days: at least 1s. An order that has waited for longer is
    /// cancelled; longer than outages usually last, or each of them costs orders.
    #[arg(long, default_value = "15min", value_parser = patience)]
    pub answer_within: Duration,

    /// How long an `Idempotency-Key` is remembered at least, such as 1day. A client that asks again later gets a second
    /// order.
    #[arg(long, default_value = "1day", value_parser = age)]
    pub remember_keys: Duration,

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

/// Shorter, and orders are given up that are merely on their way.
const SHORTEST_ANSWER: Duration = Duration::from_secs(1);

/// From less than a minute to years.
fn patience(text: &str) -> Result<Duration, String> {
    duration(text)
        .or_else(|_| age(text))
        .map_err(|_| format!("{text:?} is not a length of time such as 15min or 2days"))
}

impl Settings {
    /// Ends the process over a combination that cannot work.
    pub fn check(&self) {
        self.publishing.check(PREFIX, &self.ground);
        self.consuming.check(PREFIX, &self.ground);
        if self.answer_within < SHORTEST_ANSWER {
            refuse(
                "ORDERS_ANSWER_WITHIN: at least 1s, because the other services take that long when they are busy",
            );
        }
    }
}
