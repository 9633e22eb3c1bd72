//! `POST /orders` beside pgbench, which writes the same rows in one statement.

use std::{path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context as _, ensure};
use tokio::{io::AsyncWriteExt as _, process::Command};

use crate::{
    backlog,
    machine::cores,
    report::{Report, Rounds},
    rig::{Rig, Setup},
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Connections to the API, and of pgbench to the database.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// How often each is measured, alternately.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How many seconds each turn takes.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

pub(crate) async fn run(mut options: Options, setup: &Setup) -> anyhow::Result<Report> {
    if setup.smoke {
        options = Options { connections: 4, rounds: 1, seconds: 1 };
    }
    let (connections, turn) = (options.connections, Duration::from_secs(options.seconds));
    let rig = Rig::start_with(setup, async |system| {
        // As many database connections as pgbench has: with fewer, fewer commits would share a flush.
        system.setup.settings.insert(0, ("ORDERS_DATABASE_CONNECTIONS".to_owned(), connections.to_string()));
        Ok(())
    })
    .await?;
    let order = rig.place().await?;
    rig.stop_services(&["inventory", "billing"]).await?;
    rig.rabbitmq.stop().await?;
    let statement = backlog::statement().replace("$1", &format!("'{order}'")).replace("$2", "1");
    let url = rig.urls.of("orders");

    // Not counted: the first turn of each pays for cold caches and new connections.
    eprintln!("warming up");
    rig.saturate(connections, Duration::from_secs(1)).await?;
    pgbench(&url, connections, &statement, Duration::from_secs(1)).await?;
    let mut rounds = Rounds::default();
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}", options.rounds);
        let api = rig.saturate(connections, turn).await?.accepted_per_second();
        let bare = pgbench(&url, connections, &statement, turn).await?;
        rounds.add("POST /orders", "orders/s", api);
        rounds.add("pgbench: an order with its event", "tx/s", bare);
        rounds.add("POST /orders : pgbench", "ratio", api / bare);
    }
    let notes = vec![
        format!(
            "{connections} connections each; the HTTP client runs on the same cores, and its cost is in the figure"
        ),
        "the broker is stopped: the relay would take its share of the cores from one side only".into(),
    ];
    rig.finish("write", rounds, notes).await
}

/// Runs a statement again and again on so many connections, prepared, each as fast as answers come: PostgreSQL's own load
/// generator is next to no client. Returns the transactions per second, without the time to connect.
///
/// # Errors
/// When pgbench is not installed, or any transaction fails, or pgbench does not end.
async fn pgbench(
    database_url: &str,
    connections: u32,
    statement: &str,
    for_: Duration,
) -> anyhow::Result<f64> {
    // Debian has it beside the server and not on the path.
    let beside = testbed::find_postgres().map(|bin| bin.join("pgbench"));
    let program = beside.ok().filter(|program| program.exists()).unwrap_or_else(|| PathBuf::from("pgbench"));
    let mut command = Command::new(program);
    command.args(["--no-vacuum", "--protocol", "prepared", "--file", "-"]);
    command.args(["--client", &connections.to_string(), "--jobs", &cores().min(connections).to_string()]);
    command.args(["--time", &for_.as_secs().max(1).to_string()]).arg(database_url);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child =
        command.spawn().context("failed to start pgbench, which Debian's package `postgresql` installs")?;
    let mut script = child.stdin.take().context("pgbench has no standard input")?;
    script.write_all(format!("{statement};\n").as_bytes()).await?;
    drop(script);
    let deadline = for_ + Duration::from_secs(30);
    let output = tokio::time::timeout(deadline, child.wait_with_output()).await;
    let output =
        output.with_context(|| format!("failed to run pgbench: it did not end within {deadline:?}"))??;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "failed to run pgbench: {}", errors.trim());
    let output = String::from_utf8_lossy(&output.stdout);
    let rate = output.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    rate.with_context(|| format!("failed to read the rate from pgbench's output:\n{output}"))
}
