//! pgbench, PostgreSQL's own load generator: the rate of a statement with next to no client in front of it.

use std::{path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context as _, ensure};
use tokio::process::Command;

/// pgbench with the options that all runs of a benchmark share.
pub(crate) struct Pgbench {
    program: PathBuf,
    database_url: String,
    clients: u32,
    /// `name=value`. pgbench binds them as parameters of the prepared statement. It refuses an empty value.
    variables: Vec<String>,
}

/// The result of one run.
#[derive(Debug, PartialEq)]
pub(crate) struct Run {
    /// Transactions per second, without the time to connect.
    pub(crate) per_second: f64,
    /// Median of the transactions' latencies, if the run had a `rate`.
    pub(crate) p50: Option<Duration>,
}

impl Pgbench {
    /// # Errors
    /// When pgbench is not installed; names the package.
    pub(crate) fn new(database_url: String, clients: u32, variables: Vec<String>) -> anyhow::Result<Self> {
        Ok(Self { program: find()?, database_url, clients, variables })
    }

    /// Runs a script again and again on every connection, with prepared statements.
    ///
    /// Each connection runs it as fast as answers come. With a `rate`, all connections together run it that often per
    /// second, and the result has the median latency.
    ///
    /// # Errors
    /// When pgbench or any transaction fails, or pgbench does not end.
    pub(crate) async fn run(
        &self,
        script: &str,
        duration: Duration,
        rate: Option<f64>,
    ) -> anyhow::Result<Run> {
        let dir = Scratch::new()?;
        let file = dir.0.join("statement.sql");
        std::fs::write(&file, format!("{}\n", script.trim_end()))?;
        let mut command = Command::new(&self.program);
        command
            .current_dir(&dir.0)
            .arg("--no-vacuum")
            .args(["--protocol", "prepared"])
            .args(["--client", &self.clients.to_string()])
            .args(["--jobs", &cores().min(self.clients).to_string()])
            .args(["--time", &duration.as_secs().max(1).to_string()])
            .arg("--file")
            .arg(&file);
        for variable in &self.variables {
            command.arg("--define").arg(variable);
        }
        if let Some(rate) = rate {
            command.args(["--rate", &format!("{rate:.1}"), "--log", "--log-prefix", "log"]);
        }
        command.arg(&self.database_url).stdin(Stdio::null()).kill_on_drop(true);
        let deadline = duration + Duration::from_secs(30);
        let output = tokio::time::timeout(deadline, command.output())
            .await
            .with_context(|| format!("failed to run pgbench: it did not end within {deadline:?}"))?
            .with_context(|| format!("failed to run {}", self.program.display()))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "failed to run pgbench: {}", errors.trim());
        let p50 = if rate.is_some() { Some(dir.median_latency()?) } else { None };
        Ok(Run { per_second: per_second(&String::from_utf8_lossy(&output.stdout))?, p50 })
    }
}

/// A directory for one run's files, removed when the value is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Self> {
        let name = format!("load-tests-{}-{:x}", std::process::id(), fastrand::u64(..));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).with_context(|| format!("failed to create {}", path.display()))?;
        Ok(Self(path))
    }

    /// Reads the logs that pgbench writes, one for each of its threads. Their third column is microseconds.
    fn median_latency(&self) -> anyhow::Result<Duration> {
        let mut latencies = Vec::new();
        for entry in std::fs::read_dir(&self.0)? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log.")) {
                let log = std::fs::read_to_string(&path)?;
                latencies.extend(log.lines().filter_map(|line| line.split(' ').nth(2)?.parse::<u64>().ok()));
            }
        }
        ensure!(!latencies.is_empty(), "failed to read the latency: pgbench logged no transaction");
        latencies.sort_unstable();
        Ok(Duration::from_micros(latencies[latencies.len() / 2]))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing depends on it; the system cleans its temporary directory by itself.
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the number of cores: how many threads pgbench has, and a condition of each report.
pub(crate) fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1))
}

fn per_second(output: &str) -> anyhow::Result<f64> {
    let number = |label: &str| -> Option<f64> {
        let line = output.lines().find_map(|line| line.strip_prefix(label))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let failed = number("number of failed transactions: ").unwrap_or(0.0);
    ensure!(failed == 0.0, "failed to measure the rate: {failed} transactions failed:\n{output}");
    number("tps = ").with_context(|| format!("failed to read the rate from pgbench's output:\n{output}"))
}

fn find() -> anyhow::Result<PathBuf> {
    let next_to_the_server = testbed::find_postgres().ok().map(|bin| bin.join("pgbench"));
    let on_the_path = std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).map(|dir| dir.join("pgbench")).collect::<Vec<_>>());
    next_to_the_server
        .into_iter()
        .chain(on_the_path.into_iter().flatten())
        .find(|program| program.exists())
        .context("failed to find pgbench: on Debian and Ubuntu, `apt-get install -y postgresql` installs it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_and_a_failed_transaction_is_an_error() {
        let output = |failed| {
            format!(
                "number of failed transactions: {failed} (0.000%)\nlatency average = 2.6 ms\n\
                 tps = 12345.678901 (without initial connection time)\n"
            )
        };
        assert_eq!(per_second(&output(0)).unwrap(), 12345.678901);
        assert!(per_second(&output(3)).is_err());
        assert!(per_second("nothing of use").is_err());
    }

    #[test]
    fn the_median_is_taken_over_the_logs_of_all_threads() {
        let dir = Scratch::new().unwrap();
        std::fs::write(dir.0.join("log.77"), "0 1 500 0 1700000000 1\n1 1 700 0 1700000000 2\n").unwrap();
        std::fs::write(dir.0.join("log.77.1"), "2 1 900 0 1700000000 3\n").unwrap();
        std::fs::write(dir.0.join("statement.sql"), "not 1 a log\n").unwrap();
        assert_eq!(dir.median_latency().unwrap(), Duration::from_micros(700));
    }
}
