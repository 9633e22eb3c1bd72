//! Settings that all services share. Each is an environment variable: the service's prefix and the field in capitals.

use std::{net::SocketAddr, time::Duration};

use clap::{Args, Parser, ValueEnum};
use database::DatabaseUrl;
use reqwest::Url;

use crate::{
    environment::{age, duration},
    telemetry::{self, LogFormat},
};

/// What [`load`](crate::load) needs to know of a service's settings.
pub trait ServiceSettings: Parser {
    /// Checks what concerns more than one setting. `prefix` starts the service's variables, for example `ORDERS_`;
    /// an error names the variable and says what is valid.
    fn check(&self, prefix: &str) -> Result<(), String>;
}

/// The settings of a service that consumes and publishes, with its `own`.
#[derive(Clone, Parser)]
#[command(version)]
pub struct Settings<Own: Args> {
    /// The address of health and metrics, and in the order service of the API.
    #[arg(long)]
    pub http_address: SocketAddr,

    #[command(flatten)]
    pub own: Own,

    #[command(flatten)]
    pub common: CommonSettings,

    #[command(flatten)]
    pub publisher: PublisherSettings,

    #[command(flatten)]
    pub consumer: ConsumerSettings,
}

/// For a service without further settings.
#[derive(Debug, Clone, Args)]
pub struct NoSettings {}

impl<Own: Args> ServiceSettings for Settings<Own> {
    fn check(&self, prefix: &str) -> Result<(), String> {
        if self.publisher.keep_published > self.common.replay_within {
            return Err(format!(
                "{prefix}KEEP_PUBLISHED: at most {prefix}REPLAY_WITHIN, because older events cannot be replayed anyway"
            ));
        }
        self.consumer.check(prefix, &self.common)
    }
}

/// Connections, logs and the admin API. Without `Debug`: the broker's URL holds a password.
#[derive(Clone, Args)]
pub struct CommonSettings {
    /// The database, with the service's own login: postgres://login:password@host:5432/shop. Of several hosts
    /// (host1:5432,host2:5432) it uses the one that accepts writes.
    #[arg(long, hide_env_values = true)]
    pub database_url: DatabaseUrl,

    /// The broker, with its virtual host: amqp://user:password@host:5672/shop. A cluster is a list of hosts:
    /// amqp://user:password@one:5672,two:5672,three:5672/shop. A lost connection is opened again at the next node.
    #[arg(long, hide_env_values = true)]
    pub amqp_url: String,

    /// The queues among which each service's events are divided, by aggregate: 1, 2, 4, 8 or 16. Instances of a service share
    /// them. The same for all services; docs/operations.md#partitions says how to change it.
    #[arg(long, default_value_t = 1, value_parser = partitions)]
    pub partitions: u8,

    /// The address of the admin API (routes under /admin). Without it there is none.
    #[arg(long)]
    pub admin_address: Option<SocketAddr>,

    /// The bearer token of the admin API: 16 characters or more. While it is changed the new one, a comma and the old one
    /// (docs/operations.md#rotate-credentials).
    #[arg(long, hide_env_values = true, value_parser = tokens)]
    pub admin_token: Option<Tokens>,

    /// The greatest age of an event that an operator may publish or apply again without `force`. Shorter than
    /// KEEP_PROCESSED: a copy of an event whose record was erased is applied a second time.
    #[arg(long, default_value = "14days", value_parser = age)]
    pub replay_within: Duration,

    /// The log filter: a level, or a filter like warn,outbox=debug. At info each order and each event is a line.
    #[arg(long, default_value = "info", value_parser = telemetry::filter)]
    pub log: String,

    /// The format of log lines.
    #[arg(long, default_value = "json")]
    pub log_format: LogFormat,

    /// A trace store that receives spans over OTLP, for example http://127.0.0.1:4318. Without it, or empty: none are
    /// recorded.
    #[arg(long, default_value = "", value_parser = endpoint)]
    pub otlp_endpoint: OtlpEndpoint,

    /// The part of all traces that is recorded, 0 to 1. The same for all services: each decides by the trace's id.
    #[arg(long, default_value_t = 1.0, value_parser = ratio)]
    pub trace_ratio: f64,
}

/// The shortest token, in bytes. Wrong guesses are not counted, so it must be long.
const MIN_TOKEN_BYTES: usize = 16;

/// The bearer tokens that the admin API accepts. Without `Debug`: nothing can print them.
#[derive(Clone)]
pub struct Tokens(pub(crate) Vec<String>);

/// For `value_parser`: one or two, of visible ASCII, which an HTTP header carries without quoting.
fn tokens(text: &str) -> Result<Tokens, String> {
    let all: Vec<_> = text.split(',').map(str::to_owned).collect();
    let is_valid =
        |token: &String| token.len() >= MIN_TOKEN_BYTES && token.bytes().all(|byte| byte.is_ascii_graphic());
    if all.len() <= 2 && all.iter().all(is_valid) {
        Ok(Tokens(all))
    } else {
        Err("16 characters or more, without blanks; or two such tokens with a comma between them".into())
    }
}

/// An alias, so that clap requires the argument: an empty variable, as Compose passes it, means no endpoint.
type OtlpEndpoint = Option<Url>;

/// For `value_parser`: an address, or nothing.
fn endpoint(text: &str) -> Result<OtlpEndpoint, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let url = Url::parse(text).ok().filter(|url| url.scheme() == "http" && url.has_host());
    url.map(Some).ok_or_else(|| format!("{text:?} is not an address such as http://127.0.0.1:4318"))
}

/// For `value_parser`: each partition has as many of the sixteen lanes as the others.
fn partitions(text: &str) -> Result<u8, String> {
    let number = text.parse().ok().filter(|number| [1, 2, 4, 8, 16].contains(number));
    number.ok_or_else(|| format!("{text:?} is not 1, 2, 4, 8 or 16"))
}

/// For `value_parser`: a part of a whole.
fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| format!("{text:?} is not between 0 and 1"))
}

/// How a relay learns of new events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RelayKind {
    Poll,
    Log,
}

/// How a service publishes.
#[derive(Debug, Clone, Args)]
pub struct PublisherSettings {
    /// How the relay learns of new events: it polls the table, or it reads PostgreSQL's write-ahead log, which needs
    /// `wal_level = logical` and rights (docs/log-relay.md). The same for all instances.
    #[arg(long, default_value = "poll")]
    pub relay: RelayKind,

    /// Relays in this process. They share the work by lanes; while one waits for the broker's confirms, another reads and
    /// marks. Of those that read the log one works, so there is one, or with 0 none. With 0, this process wakes the relays of
    /// other instances after a commit.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=16))]
    pub relay_workers: u8,

    /// The most events that a relay publishes in one step.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub relay_batch: u16,

    /// The longest sleep of a relay when nothing wakes it: 1ms to 1h.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub relay_poll: Duration,

    /// How often a relay scans all pending events, and not only those after its watermark: 1ms to 1h. The longest that an
    /// event whose transaction committed very late must wait, unless full scans take long: see docs/scan-watermark.md.
    #[arg(long, default_value = "3s", value_parser = duration)]
    pub relay_full_scan: Duration,

    /// How long published events stay in the outbox, for example 7days: what can be published again, and in the order
    /// service the history of `GET /orders/{id}`. Pending events stay forever.
    #[arg(long, default_value = "7days", value_parser = age)]
    pub keep_published: Duration,

    /// How long the broker may take to confirm one batch. At most 17s: the relay holds a transaction open in the
    /// meantime, and PostgreSQL ends a session that is idle in one after 30s.
    #[arg(long, default_value = "10s", value_parser = confirm_deadline)]
    pub confirm_deadline: Duration,
}

/// How a service consumes.
#[derive(Debug, Clone, Args)]
pub struct ConsumerSettings {
    /// Connections to the database, and one more for each further partition. The consumer and the dead-letter collector use one
    /// each; retention, counts, health and operators need one now and then.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=100))]
    pub consumer_connections: u32,

    /// How many unacknowledged messages the broker may deliver at a time. The same for all instances of the service: with
    /// different ones, messages that two of them lose may come back in another order.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub prefetch: u16,

    /// How long the record of a processed event is kept, for example 30days: at least a day. A copy that arrives later is
    /// applied again, so it must be longer than an event can be published again (docs/retention.md).
    #[arg(long, default_value = "30days", value_parser = keep_processed)]
    pub keep_processed: Duration,
}

/// For `value_parser`. The relay begins its last wave after four seconds, asks a broker that has not confirmed in time
/// whether it answers for up to three, and closes a connection within one. That leaves five seconds until PostgreSQL
/// ends its session.
fn confirm_deadline(text: &str) -> Result<Duration, String> {
    let deadline = duration(text)?;
    if deadline > Duration::from_secs(17) {
        return Err("at most 17s, because PostgreSQL ends the relay's session after 30s".into());
    }
    Ok(deadline)
}

/// For `value_parser`. Without any operator, a copy arrives as late as the longest outage between a confirm and its mark.
fn keep_processed(text: &str) -> Result<Duration, String> {
    let keep = age(text)?;
    if keep < Duration::from_secs(24 * 3600) {
        return Err(
            "at least 1day, because a copy that arrives after an outage would be applied again".into()
        );
    }
    Ok(keep)
}

impl ConsumerSettings {
    /// See [`ServiceSettings::check`].
    pub fn check(&self, prefix: &str, common: &CommonSettings) -> Result<(), String> {
        if self.keep_processed <= common.replay_within {
            return Err(format!(
                "{prefix}KEEP_PROCESSED: longer than {prefix}REPLAY_WITHIN, because a replay of an event whose record was \
                 erased is applied again"
            ));
        }
        Ok(())
    }
}
