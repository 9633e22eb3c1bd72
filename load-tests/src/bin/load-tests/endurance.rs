//! Endurance: a constant rate for a long time, with retention shortened to minutes. What should stay flat is sampled: the
//! outbox's table and indexes, the services' memory, the connections, and the time to answer.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use load_tests::Load;
use sqlx::{PgConnection, Row as _};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::{
    memory,
    report::{Curve, Figure, Report},
    rig::{Login, Rig},
    sampled_load::SampledLoad,
    setup::{SERVICES, Setup},
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// How many seconds orders are placed.
    #[arg(long, default_value_t = 1_800, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Orders per second.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// How long published events are kept, such as 2m. Each service erases once a minute.
    #[arg(long, default_value = "2m")]
    keep: String,
}

impl Options {
    pub(crate) fn smoke(self) -> Self {
        Self { seconds: 2, rate: self.rate.min(20), keep: self.keep }
    }

    pub(crate) fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

const SAMPLES: u32 = 100;
const APPLIED_DEADLINE: Duration = Duration::from_secs(300);

struct Sample {
    second: f64,
    /// Events that are not published, in all three outboxes.
    pending: f64,
    /// MiB of the three outboxes: tables and indexes apart.
    tables: f64,
    indexes: f64,
    /// MiB resident in the three services.
    memory: f64,
    connections: f64,
    /// Of the orders that were answered since the last sample, in milliseconds. `None`: none was.
    post_p99: Option<f64>,
}

pub(crate) async fn run(options: &Options, setup: &Setup) -> anyhow::Result<Report> {
    let kept = setup.with_setting_of_each("KEEP_PUBLISHED", &options.keep);
    let rig = Rig::start(&kept).await?;
    let samples = load_and_sample(&rig, options).await?;
    // The benchmarks' usual question counts events, of which the oldest are erased by now.
    let mut auditor = rig.connect(Login::Auditor).await?;
    testbed::eventually("all orders to end", APPLIED_DEADLINE, async || {
        let open: i64 = sqlx::query_scalar(
            "select count(*) from orders.orders where status in ('pending', 'reserved', 'paid')",
        )
        .fetch_one(&mut auditor)
        .await?;
        ensure!(open == 0, "{open} orders are open");
        Ok(Some(()))
    })
    .await?;
    let conditions = rig.conditions().await?;
    rig.stop().await;
    let notes = vec![
        format!("{} orders a second; published events are kept for {}", options.rate, options.keep),
        "thirds of the time: retention works from the second one on; figures are the most of each third"
            .into(),
        "processed_events is not erased in this time: its shortest retention time is a day".into(),
    ];
    Ok(Report::new("endurance", setup, conditions, figures(&samples)?, notes)
        .with_curves(vec![curve(&samples)]))
}

async fn load_and_sample(rig: &Rig, options: &Options) -> anyhow::Result<Vec<Sample>> {
    let mut auditor = rig.connect(Login::Auditor).await?;
    let load = SampledLoad::start(Load::new(rig.orders_url(), options.rate, Duration::MAX));
    let start = Instant::now();
    let mut tick = interval(Duration::from_secs(options.seconds) / SAMPLES);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut samples = vec![];
    while start.elapsed() < Duration::from_secs(options.seconds) {
        tick.tick().await;
        let (_, post_p99) = load.sample();
        samples.push(Sample {
            second: start.elapsed().as_secs_f64(),
            post_p99,
            ..read(rig, &mut auditor).await?
        });
    }
    load.stop().await?;
    Ok(samples)
}

async fn read(rig: &Rig, auditor: &mut PgConnection) -> anyhow::Result<Sample> {
    let row = sqlx::query(
        "select ((select count(*) from orders.outbox where published_at is null)
               + (select count(*) from inventory.outbox where published_at is null)
               + (select count(*) from billing.outbox where published_at is null))::float8,
                sum(pg_table_size(name::regclass))::float8 / 1048576, sum(pg_indexes_size(name::regclass))::float8 / 1048576,
                (select count(*) from pg_stat_activity where datname = current_database())::float8
         from unnest(array['orders.outbox', 'inventory.outbox', 'billing.outbox']) as name",
    )
    .fetch_one(auditor)
    .await
    .context("failed to read the sizes")?;
    let mut memory = 0.0;
    for (name, pid) in rig.processes().await {
        if SERVICES.contains(&name.as_str()) {
            memory += memory::resident(pid)?;
        }
    }
    Ok(Sample {
        second: 0.0,
        pending: row.try_get(0)?,
        tables: row.try_get(1)?,
        indexes: row.try_get(2)?,
        memory,
        connections: row.try_get(3)?,
        post_p99: None,
    })
}

/// The most of each third of the time.
fn figures(samples: &[Sample]) -> anyhow::Result<Vec<Figure>> {
    type Read = fn(&Sample) -> f64;
    let quantities: [(&str, &str, Read); 6] = [
        ("the outboxes' tables", "MiB", |sample| sample.tables),
        ("the outboxes' indexes", "MiB", |sample| sample.indexes),
        ("memory of the three services", "MiB", |sample| sample.memory),
        ("connections to PostgreSQL", "connections", |sample| sample.connections),
        ("events pending", "events", |sample| sample.pending),
        ("POST p99", "ms", |sample| sample.post_p99.unwrap_or_default()),
    ];
    let third = samples.len().div_ceil(3);
    let mut figures = vec![];
    for (what, unit, quantity) in quantities {
        for (name, part) in ["first", "second", "last"].into_iter().zip(samples.chunks(third.max(1))) {
            let most = part.iter().map(quantity).fold(0.0, f64::max);
            figures.push(Figure::new(format!("{what}, {name} third"), unit, vec![most])?);
        }
    }
    Ok(figures)
}

fn curve(samples: &[Sample]) -> Curve {
    let rows = samples.iter().map(|sample| {
        let Sample { second, pending, tables, indexes, memory, post_p99, .. } = sample;
        vec![*second, *pending, *tables, *indexes, *memory, post_p99.unwrap_or(f64::NAN)]
    });
    Curve {
        name: "endurance".into(),
        columns: ["second", "pending", "tables MiB", "indexes MiB", "memory MiB", "POST p99 ms"],
        rows: rows.collect(),
    }
}
