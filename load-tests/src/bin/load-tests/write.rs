//! `POST /orders` beside its own statement in pgbench, and that statement with the outbox row beside without it.

use std::time::Duration;

use anyhow::Context as _;

use crate::{
    orders_sql::{self, OrderScripts},
    pgbench::Pgbench,
    report::{Figure, Goal, Report},
    rig::Rig,
    setup::Setup,
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
    let scripts = OrderScripts::read()?;
    let turn = Duration::from_secs(options.seconds);
    // With as many database connections as pgbench has: with fewer, fewer commits would share a flush.
    let setup = setup.with_setting("ORDERS_DATABASE_CONNECTIONS", &options.connections.to_string());
    let rig = Rig::start(&setup).await?;
    let order = rig.place(orders_sql::TEMPLATE_ORDER).await?;
    let (payload, headers) = rig.event_of(order).await?;
    let variables = orders_sql::variables(&payload, &headers);
    let pgbench = Pgbench::new(rig.database_url().to_owned(), options.connections, variables)?;
    for service in ["inventory", "billing"] {
        rig.stop_service(service).await?;
    }
    rig.stop_broker().await?;

    // Not counted: the first turn of each pays for cold caches and new connections.
    eprintln!("warming up");
    rig.saturate(options.connections, Duration::from_secs(1)).await?;
    pgbench.run(&scripts.with_event, Duration::from_secs(1), None).await?;

    let [mut api, mut with, mut without] = [vec![], vec![], vec![]];
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}", options.rounds);
        api.push(rig.saturate(options.connections, turn).await?.accepted_per_second());
        with.push(pgbench.run(&scripts.with_event, turn, None).await?.per_second);
        without.push(pgbench.run(&scripts.without_event, turn, None).await?.per_second);
    }
    let half = without.iter().copied().fold(f64::INFINITY, f64::min) / 2.0;
    let [mut p50_with, mut p50_without] = [vec![], vec![]];
    for round in 1..=options.rounds {
        eprintln!("round {round} of {} at half load", options.rounds);
        for (script, medians) in
            [(&scripts.with_event, &mut p50_with), (&scripts.without_event, &mut p50_without)]
        {
            let run = pgbench.run(script, turn, Some(half)).await?;
            let p50 = run.p50.context("failed to read the latency: pgbench logged none")?;
            medians.push(p50.as_secs_f64() * 1e3);
        }
    }
    let api = Figure::new("POST /orders", "orders/s", api)?;
    let with = Figure::new("pgbench, the same statement", "tx/s", with)?;
    let without = Figure::new("pgbench, without the outbox row", "tx/s", without)?;
    let p50_with = Figure::new("its p50 at half load, with", "ms", p50_with)?;
    let p50_without = Figure::new("its p50 at half load, without", "ms", p50_without)?;
    let against_bare = Figure::ratio("POST /orders : pgbench", &api, &with)?.goal(Goal::AtLeast(0.90));
    let overhead = Figure::ratio("with : without the outbox row", &with, &without)?.goal(Goal::AtLeast(0.90));
    let p50 = Figure::ratio("p50 at half load, with : without", &p50_with, &p50_without)?;
    let p50 = p50.goal(Goal::AtMost(1.15));
    let figures = vec![api, with, against_bare, without, overhead, p50_with, p50_without, p50];
    let notes = vec![
        format!(
            "{} connections each; the HTTP client runs on the same cores, and its cost is in the API's figure",
            options.connections
        ),
        "the broker is stopped: the relay would take its share of the cores from one side only".into(),
        "half load is half of the slowest unthrottled round without the outbox row".into(),
    ];
    rig.finish("write", figures, notes).await
}
