//! pgbench, PostgreSQL's own load generator: the rate of a statement with next to no client in front of it.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, ensure};
use tokio::{io::AsyncWriteExt as _, process::Command};

use crate::cpu_time::cores;

/// Runs a statement again and again on so many connections, prepared, at random moments of so many a second, or each as fast
/// as answers come. Returns the transactions per second, without the time to connect.
///
/// # Errors
/// When pgbench is not installed, or any transaction fails, or pgbench does not end.
pub(crate) async fn run(
    database_url: &str,
    connections: u32,
    rate: Option<u32>,
    statement: &str,
    for_: Duration,
) -> anyhow::Result<f64> {
    // Debian has it beside the server and not on the path.
    let program = testbed::find_postgres()
        .map(|bin| bin.join("pgbench"))
        .ok()
        .filter(|program| program.exists())
        .unwrap_or_else(|| PathBuf::from("pgbench"));
    let mut command = Command::new(program);
    command.args(["--no-vacuum", "--protocol", "prepared", "--file", "-"]);
    command.args(["--client", &connections.to_string(), "--jobs", &cores().min(connections).to_string()]);
    if let Some(rate) = rate {
        command.args(["--rate", &rate.to_string()]);
    }
    command.args(["--time", &for_.as_secs().max(1).to_string()]).arg(database_url);
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    command.stderr(std::process::Stdio::piped()).kill_on_drop(true);
    let mut child =
        command.spawn().context("failed to start pgbench, which Debian's package `postgresql` installs")?;
    let mut script = child.stdin.take().context("pgbench has no standard input")?;
    script.write_all(format!("{statement};\n").as_bytes()).await?;
    drop(script);
    let deadline = for_ + Duration::from_secs(30);
    let output = tokio::time::timeout(deadline, child.wait_with_output())
        .await
        .with_context(|| format!("failed to run pgbench: it did not end within {deadline:?}"))??;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "failed to run pgbench: {}", errors.trim());
    let output = String::from_utf8_lossy(&output.stdout);
    let rate = output.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    rate.with_context(|| format!("failed to read the rate from pgbench's output:\n{output}"))
}
