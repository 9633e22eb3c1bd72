//! Structured logs to standard output, and metrics for Prometheus.

use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::{EnvFilter, layer::SubscriberExt, util::SubscriberInitExt};

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line: for machines.
    Json,
    /// For people.
    Text,
}

/// Upper bounds of the histograms' buckets, in seconds: from a commit that is published at once to an outage.
const BUCKETS: [f64; 16] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0];

/// For `value_parser`: a log filter such as `info` or `warn,outbox=debug`.
///
/// # Errors
/// Says what is right.
pub fn filter(text: &str) -> Result<String, String> {
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(format!("{text:?} is not a log filter, such as info or warn,outbox=debug")),
    }
}

/// Starts logs and metrics for this process. What it returns renders `/metrics`.
///
/// # Errors
/// When called twice.
pub fn start(filter: &str, format: LogFormat) -> anyhow::Result<PrometheusHandle> {
    let registry = tracing_subscriber::registry().with(EnvFilter::try_new(filter)?);
    let lines = tracing_subscriber::fmt::layer();
    match format {
        LogFormat::Json => {
            registry.with(lines.json().flatten_event(true).with_span_list(false)).try_init()?;
        }
        LogFormat::Text => registry.with(lines).try_init()?,
    }
    Ok(PrometheusBuilder::new().set_buckets(&BUCKETS)?.install_recorder()?)
}

/// Folds recorded values into the histograms, until `stop`. Without it they would pile up between two scrapes.
pub async fn upkeep(metrics: PrometheusHandle, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(Duration::from_secs(5))).await.is_some() {
        metrics.run_upkeep();
    }
}
