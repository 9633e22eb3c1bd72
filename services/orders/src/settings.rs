use std::{net::SocketAddr, time::Duration};

use clap::Parser;
use service::{
    environment::{age, duration},
    settings::{CommonSettings, ConsumerSettings, PublisherSettings, ServiceSettings},
};

/// Settings of the order service, from environment variables.
#[derive(Clone, Parser)]
#[command(name = "orders", version)]
pub struct Settings {
    /// The address of the API, health and metrics.
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub http_address: SocketAddr,

    /// Connections for the API. Each request holds one for the time of one statement.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=200))]
    pub database_connections: u32,

    /// Requests at the same time; further ones are answered with 503 at once. They wait in memory for a connection, so this
    /// bounds the memory. Fewer than the 1024 connections of the listener.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub max_requests: u16,

    /// How long inventory and billing may take to answer, such as 15min or 2days: at least 1s. An order that has waited
    /// longer is cancelled, so it has to be longer than outages usually last.
    #[arg(long, default_value = "15min", value_parser = duration_or_age)]
    pub answer_within: Duration,

    /// How long an `Idempotency-Key` is kept at least, such as 1day. A client that retries later gets a second order.
    #[arg(long, default_value = "1day", value_parser = age)]
    pub keep_idempotency_keys: Duration,

    #[command(flatten)]
    pub common: CommonSettings,

    #[command(flatten)]
    pub publisher: PublisherSettings,

    #[command(flatten)]
    pub consumer: ConsumerSettings,
}

/// With less, orders would be cancelled that are merely in progress.
const MIN_ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// A duration of less than a minute, or an age of up to years.
fn duration_or_age(text: &str) -> Result<Duration, String> {
    duration(text)
        .or_else(|_| age(text))
        .map_err(|_| format!("{text:?} is not a duration such as 15min or 2days"))
}

impl ServiceSettings for Settings {
    fn common(&mut self) -> &mut CommonSettings {
        &mut self.common
    }

    fn check(&self, prefix: &str) -> Result<(), String> {
        self.publisher.check(prefix, &self.common)?;
        self.consumer.check(prefix, &self.common)?;
        if self.answer_within < MIN_ANSWER_WITHIN {
            return Err(format!(
                "{prefix}ANSWER_WITHIN: at least 1s, because the other services take that long when they are busy"
            ));
        }
        Ok(())
    }
}
