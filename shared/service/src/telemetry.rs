//! Structured logs to standard output, and metrics for Prometheus.

use std::{
    io::{self, Write},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

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

/// Adds limits for RabbitMQ's client. At `warn` it prints each returned message whole, with what a customer has
/// ordered, and at `trace` the password. A filter that names the client has its way, except for the password.
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

/// The bytes of lines that may wait to be written: about a second of a busy service.
const MAX_WAITING: usize = 256 * 1024;

/// How long the end of a process waits for its last lines.
const FLUSH_DEADLINE: Duration = Duration::from_secs(1);

/// The writer of this process, for [`flush`].
static OF_PROCESS: OnceLock<LogWriter> = OnceLock::new();

/// Cheap to clone. Each call of `write` is one line.
#[derive(Debug, Clone)]
pub(crate) struct LogWriter {
    lines: Sender<Vec<u8>>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that wait to be written, or are being written.
    waiting: AtomicUsize,
    /// Lines that were dropped and not reported yet.
    dropped: AtomicU64,
}

impl LogWriter {
    /// Starts the thread that writes to `output`.
    pub(crate) fn start(output: impl Write + Send + 'static) -> io::Result<Self> {
        let ((lines, queue), state) = (mpsc::channel(), Arc::<State>::default());
        let writing = state.clone();
        thread::Builder::new().name("log".into()).spawn(move || write_all(output, &queue, &writing))?;
        Ok(Self { lines, state })
    }

    /// The writer to standard output, which [`flush`] waits for.
    pub(crate) fn of_process() -> io::Result<Self> {
        let writer = Self::start(io::stdout())?;
        Ok(OF_PROCESS.get_or_init(|| writer).clone())
    }

    #[expect(clippy::disallowed_methods, reason = "the process ends: nothing else needs this thread")]
    fn flush(&self) {
        let began = Instant::now();
        while self.state.waiting.load(Relaxed) > 0 && began.elapsed() < FLUSH_DEADLINE {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Waits, for a second at most, until what was logged is written. For the end of a process.
pub fn flush() {
    if let Some(writer) = OF_PROCESS.get() {
        writer.flush();
    }
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let State { waiting, dropped } = &*self.state;
        let before = waiting.fetch_add(line.len(), Relaxed);
        if before + line.len() > MAX_WAITING || self.lines.send(line.to_vec()).is_err() {
            waiting.fetch_sub(line.len(), Relaxed);
            dropped.fetch_add(1, Relaxed);
            metrics::counter!("log_lines_dropped_total").increment(1);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(mut output: impl Write, queue: &Receiver<Vec<u8>>, State { waiting, dropped }: &State) {
    while let Ok(line) = queue.recv() {
        // A reader that has ended is no reason to end.
        let _ = output.write_all(&line).and_then(|()| output.flush());
        // Half of the queue is free: the reader is back, and this line fits.
        if waiting.fetch_sub(line.len(), Relaxed) < MAX_WAITING / 2 {
            let lines = dropped.swap(0, Relaxed);
            if lines > 0 {
                tracing::warn!(lines, "log lines dropped: standard output was not read in time");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{SyncSender, sync_channel};

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

    /// An output whose reader takes as much as the test says.
    struct Pipe(SyncSender<Vec<u8>>);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stalled_reader_stops_nothing_and_costs_the_newest_lines() -> io::Result<()> {
        let (pipe, reader) = sync_channel(0);
        let mut writer = LogWriter::start(Pipe(pipe))?;
        let line = vec![b'x'; 64 * 1024];
        let fit = MAX_WAITING / line.len();
        for _ in 0..fit + 3 {
            writer.write_all(&line)?;
        }
        assert_eq!(writer.state.dropped.load(Relaxed), 3);
        // The end of a process does not wait for it forever.
        LogWriter::flush(&writer);
        let reading = thread::spawn(move || reader.iter().take(fit).map(|line| line.len()).sum::<usize>());
        assert_eq!(reading.join().unwrap(), MAX_WAITING);
        LogWriter::flush(&writer);
        assert_eq!((writer.state.waiting.load(Relaxed), writer.state.dropped.load(Relaxed)), (0, 0));
        Ok(())
    }
}
