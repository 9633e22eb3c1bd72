use std::{net::SocketAddr, time::Duration};

use clap::Parser;
use reqwest::Url;
use runtime::settings::{duration, refuse};
use service::settings::{Consuming, Ground, Publishing};

/// What all variables of this service begin with.
pub const PREFIX: &str = "BILLING_";

/// Settings of the billing service. Each is an environment variable; a wrong or unknown one ends the start.
#[derive(Debug, Clone, Parser)]
#[command(name = "billing", version)]
pub struct Settings {
    /// Where the health and the metrics are served.
    #[arg(long, default_value = "127.0.0.1:8082")]
    pub http_address: SocketAddr,

    /// The payment provider: http://host:port.
    #[arg(long, value_parser = base)]
    pub provider_url: Url,

    /// How long one call to the provider may take. After that nobody knows what came of it, and it is made again, with
    /// the same key.
    #[arg(long, default_value = "3s", value_parser = duration)]
    pub provider_deadline: Duration,

    /// How many calls to the provider may be under way at the same time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub provider_calls: u16,

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

/// A stop waits for calls that are under way, and for no longer than the process has.
const LONGEST_CALL: Duration = Duration::from_secs(6);

impl Settings {
    /// Ends the process over settings that cannot work.
    pub fn check(&self) {
        self.publishing.check(PREFIX, &self.ground);
        self.consuming.check(PREFIX, &self.ground);
        if self.provider_deadline > LONGEST_CALL {
            refuse(
                "BILLING_PROVIDER_DEADLINE: at most 6s, because a stop waits for calls that are under way",
            );
        }
    }
}

/// A URL under which `charges` and `refunds` lie.
fn base(text: &str) -> Result<Url, String> {
    let wrong = || "not a URL like http://provider:8083".to_owned();
    let url = Url::parse(text).map_err(|_| wrong())?;
    if url.scheme() != "http" || url.cannot_be_a_base() || !url.has_host() {
        return Err(wrong());
    }
    // Without the slash, the last part of a path would be taken for a file.
    let slashed = if text.ends_with('/') { text.to_owned() } else { format!("{text}/") };
    Url::parse(&slashed).map_err(|_| wrong())
}
