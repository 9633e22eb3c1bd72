//! Structured logs to standard output, and metrics for Prometheus.

use std::time::Duration;

use crate::log_writer::LogWriter;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::{EnvFilter, layer::SubscriberExt, util::SubscriberInitExt};

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line, for machines.
    Json,
    /// Plain text, for people.
    Text,
}

/// Upper bounds of the histograms' buckets, in seconds: from a commit that is published at once to a long outage.
const BUCKETS: [f64; 16] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0];

/// For `value_parser`: a log filter such as `info` or `warn,outbox=debug`.
///
/// # Errors
/// A sentence that says what is valid.
pub fn filter(text: &str) -> Result<String, String> {
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(format!("{text:?} is not a log filter, such as info or warn,outbox=debug")),
    }
}

/// Starts logs and metrics for this process. The handle renders `/metrics`.
///
/// # Errors
/// When called twice.
pub fn start(filter: &str, format: LogFormat) -> anyhow::Result<PrometheusHandle> {
    let registry = tracing_subscriber::registry().with(EnvFilter::try_new(with_quiet_client(filter))?);
    let writer = LogWriter::of_process()?;
    let lines = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
    match format {
        LogFormat::Json => {
            registry.with(lines.json().flatten_event(true).with_span_list(false)).try_init()?;
        }
        LogFormat::Text => registry.with(lines).try_init()?,
    }
    let metrics = PrometheusBuilder::new().set_buckets(&BUCKETS)?.install_recorder()?;
    metrics::counter!("log_lines_dropped_total").absolute(0);
    Ok(metrics)
}

/// Adds limits for RabbitMQ's client. At `warn` it prints each returned message whole, with what a customer has ordered, and at
/// `trace` the password. A filter that names the client has its way, except for the password.
fn with_quiet_client(filter: &str) -> String {
    let returned = if filter.contains("lapin") { "" } else { ",lapin=info,lapin::returned_messages=error" };
    format!("{filter}{returned},lapin::io_loop=debug")
}

/// Aggregates recorded values into the histograms, until `stop`. Without it they would use memory until the next scrape.
pub async fn upkeep(metrics: PrometheusHandle, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(Duration::from_secs(5))).await.is_some() {
        metrics.run_upkeep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_of_the_broker_prints_no_message_and_no_password() {
        for chosen in ["info", "trace", "warn,outbox=debug", "lapin=trace"] {
            let filter = EnvFilter::try_new(with_quiet_client(chosen)).unwrap().to_string();
            assert!(filter.contains("lapin::io_loop=debug"), "{chosen}: {filter}");
            assert_eq!(
                filter.contains("lapin::returned_messages=error"),
                !chosen.contains("lapin"),
                "{filter}"
            );
        }
    }
}
