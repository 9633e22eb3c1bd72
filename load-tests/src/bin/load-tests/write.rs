//! `POST /orders` against the same statement from pgbench, and that statement with the event against without.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use load_tests::{Saturation, saturate};

use crate::{
    conditions::Conditions,
    orders_sql,
    pgbench::Pgbench,
    report::{Figure, Goal, Report},
    rig::Rig,
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Connections to the API, and of pgbench to the database.
    #[arg(long, default_value_t = 32)]
    connections: u32,
    /// How often each is measured, in turns.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How long each turn takes.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

pub(crate) async fn run(options: &Options, settings: &[(String, String)]) -> anyhow::Result<Report> {
    let turn = Duration::from_secs(options.seconds.max(1));
    // With as many database connections as pgbench has: with fewer, fewer commits would share a flush.
    let connections = ("ORDERS_DATABASE_CONNECTIONS".to_owned(), options.connections.to_string());
    let rig = Rig::start(std::iter::once(connections).chain(settings.iter().cloned()).collect()).await?;
    let order = rig.place(orders_sql::TEMPLATE_ORDER).await?;
    let (payload, headers) = rig.event_of(order).await?;
    let variables = orders_sql::variables(&payload, &headers);
    let pgbench = Pgbench::new(rig.database_url().to_owned(), options.connections, variables)?;
    let (with, without) = (orders_sql::write(true), orders_sql::write(false));
    for service in ["inventory", "billing"] {
        rig.stop_service(service).await?;
    }
    rig.stop_broker().await?;

    // The first turn of each pays for cold caches and new connections: not counted.
    eprintln!("warming up");
    api(&rig, options, Duration::from_secs(1)).await?;
    pgbench.run(&with, Duration::from_secs(1), None).await?;

    let mut turns = Turns::default();
    for round in 1..=options.rounds.max(1) {
        eprintln!("round {round} of {}", options.rounds.max(1));
        turns.api.push(api(&rig, options, turn).await?);
        turns.with.push(pgbench.run(&with, turn, None).await?.per_second);
        turns.without.push(pgbench.run(&without, turn, None).await?.per_second);
    }
    let half = turns.without.iter().copied().fold(f64::INFINITY, f64::min) / 2.0;
    for round in 1..=options.rounds.max(1) {
        eprintln!("round {round} of {} at half load", options.rounds.max(1));
        for (statement, medians) in [(&with, &mut turns.p50_with), (&without, &mut turns.p50_without)] {
            let run = pgbench.run(statement, turn, Some(half)).await?;
            medians.push(run.p50.context("pgbench logged no latency")?.as_secs_f64() * 1e3);
        }
    }
    let report = turns.into_report(rig.conditions().await?, options)?;
    rig.stop().await;
    Ok(report)
}

#[derive(Default)]
struct Turns {
    api: Vec<f64>,
    with: Vec<f64>,
    without: Vec<f64>,
    p50_with: Vec<f64>,
    p50_without: Vec<f64>,
}

impl Turns {
    fn into_report(self, conditions: Conditions, options: &Options) -> anyhow::Result<Report> {
        let api = Figure::new("POST /orders", "orders/s", self.api)?;
        let with = Figure::new("pgbench, the same statement", "tx/s", self.with)?;
        let without = Figure::new("pgbench, without the outbox row", "tx/s", self.without)?;
        let p50_with = Figure::new("its p50 at half load, with", "ms", self.p50_with)?;
        let p50_without = Figure::new("its p50 at half load, without", "ms", self.p50_without)?;
        let against_bare = Figure::ratio("POST /orders : pgbench", &api, &with)?.goal(Goal::AtLeast(0.80));
        let overhead = Figure::ratio("with : without the outbox row", &with, &without)?;
        let p50 = Figure::ratio("p50 at half load, with : without", &p50_with, &p50_without)?;
        let figures = vec![
            api,
            with,
            against_bare,
            without,
            overhead.goal(Goal::AtLeast(0.85)),
            p50_with,
            p50_without,
            p50.goal(Goal::AtMost(1.02)),
        ];
        let connections = options.connections;
        let notes = vec![
            format!("{connections} connections each; the HTTP client runs on the same cores and is paid for by the API's figure"),
            "the broker is stopped, so that the relay does not take its share of the cores from one side only".into(),
            "half load is half of the slowest unthrottled round without the outbox row".into(),
        ];
        Ok(Report { benchmark: "write", conditions, figures, notes })
    }
}

async fn api(rig: &Rig, options: &Options, for_: Duration) -> anyhow::Result<f64> {
    let connections = options.connections;
    let load = Saturation { url: rig.orders_url(), connections, for_, seed: fastrand::u64(..) };
    let summary = saturate(load, |_| ()).await?;
    ensure!(
        summary.accepted == summary.sent,
        "not every order was accepted: {summary} {:?}",
        summary.failures
    );
    Ok(summary.accepted_per_second())
}
