//! Structured logs to standard output, and metrics for Prometheus.

use std::{
    io,
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio_util::sync::CancellationToken;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
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

/// For `value_parser`: a log filter, for example `info` or `warn,outbox=debug`.
pub fn filter(text: &str) -> Result<String, String> {
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(format!("{text:?} is not a log filter, such as info or warn,outbox=debug")),
    }
}

/// Starts logs and metrics for this process, once. The handle renders `/metrics`.
pub fn start(filter: &str, format: LogFormat) -> anyhow::Result<PrometheusHandle> {
    let registry = tracing_subscriber::registry().with(EnvFilter::try_new(with_quiet_client(filter))?);
    // Another thread writes. With a writer that waits, a reader of the log that has stopped would stop the service.
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(MAX_WAITING)
        .thread_name("log")
        .finish(io::stdout());
    DROPPED.get_or_init(|| writer.error_counter());
    *WRITING.lock().unwrap_or_else(PoisonError::into_inner) = Some(guard);
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
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

/// Adds limits for RabbitMQ's client. At `warn` it prints each returned message whole, with what a customer has
/// ordered, and at `trace` the password. A filter that names the client has its way, except for the password.
fn with_quiet_client(filter: &str) -> String {
    let returned = if filter.contains("lapin") { "" } else { ",lapin=info,lapin::returned_messages=error" };
    format!("{filter}{returned},lapin::io_loop=debug")
}

/// Aggregates recorded values into the histograms, and reports lines that were dropped, until `stop`. Without the first they would
/// use memory until the next scrape.
pub async fn upkeep(metrics: PrometheusHandle, stop: CancellationToken) {
    let mut reported = 0;
    while stop.run_until_cancelled(tokio::time::sleep(UPKEEP_INTERVAL)).await.is_some() {
        metrics.run_upkeep();
        let dropped = dropped_lines();
        metrics::counter!("log_lines_dropped_total").absolute(dropped);
        if dropped > reported {
            let lines = dropped - reported;
            tracing::warn!(lines, "log lines dropped: standard output was not read in time");
            // Otherwise this line may be one of them.
            if dropped_lines() == dropped {
                reported = dropped;
            }
        }
    }
}

const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// The lines that may wait to be written: about a second of a busy service. The newest are dropped.
const MAX_WAITING: usize = 1_000;

/// How many lines of this process were dropped.
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

fn dropped_lines() -> u64 {
    DROPPED.get().map_or(0, ErrorCounter::dropped_lines).try_into().unwrap_or(u64::MAX)
}

/// Dropped by [`flush`].
static WRITING: Mutex<Option<WorkerGuard>> = Mutex::new(None);

/// Waits, for a second or so at most, until what was logged is written. For the end of a process: later lines are lost.
pub fn flush() {
    drop(WRITING.lock().unwrap_or_else(PoisonError::into_inner).take());
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
