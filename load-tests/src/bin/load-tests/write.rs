//! `POST /orders` beside pgbench, which writes the same rows in one statement.

use std::time::Duration;

use crate::{
    backlog::{self, EventIn},
    pgbench,
    report::{Figure, Report},
    rig::{Login, Rig, Setup},
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

pub(crate) async fn run(options: &Options, setup: &Setup) -> anyhow::Result<Report> {
    let (connections, turn) = (options.connections, Duration::from_secs(options.seconds));
    let rig = Rig::start_with(setup, async |system| {
        // As many database connections as pgbench has: with fewer, fewer commits would share a flush.
        system.setup.settings.insert(0, ("ORDERS_DATABASE_CONNECTIONS".to_owned(), connections.to_string()));
        Ok(())
    })
    .await?;
    let order = rig.place().await?;
    rig.stop_services(&["inventory", "billing"]).await?;
    rig.stop_broker().await?;
    let statement =
        backlog::statement(EventIn::Outbox).replace("$1", &format!("'{order}'")).replace("$2", "1");
    let url = rig.database_url(Login::Orders);

    // Not counted: the first turn of each pays for cold caches and new connections.
    eprintln!("warming up");
    rig.saturate(connections, Duration::from_secs(1)).await?;
    pgbench::run(&url, connections, None, &statement, Duration::from_secs(1)).await?;
    let [mut api, mut bare] = [vec![], vec![]];
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}", options.rounds);
        api.push(rig.saturate(connections, turn).await?.accepted_per_second());
        bare.push(pgbench::run(&url, connections, None, &statement, turn).await?);
    }
    let api = Figure::new("POST /orders", "orders/s", api)?;
    let bare = Figure::new("pgbench: an order with its event", "tx/s", bare)?;
    let ratio = Figure::ratio("POST /orders : pgbench", &api, &bare)?;
    let notes = vec![
        format!(
            "{connections} connections each; the HTTP client runs on the same cores, and its cost is in the figure"
        ),
        "the broker is stopped: the relay would take its share of the cores from one side only".into(),
    ];
    rig.finish("write", vec![api, bare, ratio], notes).await
}
