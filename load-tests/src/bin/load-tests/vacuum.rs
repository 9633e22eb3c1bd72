//! The relay's rate while a long transaction elsewhere holds back vacuum: with its scan watermark, and with full scans only.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sqlx::{Connection as _, PgConnection};

use crate::{
    orders_sql,
    relay::{Drain, drain},
    report::{Figure, Goal, Report},
    rig::{Login, Rig},
    setup::Setup,
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Events that were published while vacuum was held back. A full scan reads their dead index entries.
    #[arg(long, default_value_t = 300_000)]
    dead: u32,
    /// The backlog of each turn.
    #[arg(long, default_value_t = 30_000)]
    events: u32,
    /// How often each is measured, alternately.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

impl Options {
    pub(crate) fn smoke(self) -> Self {
        Self { dead: self.dead.min(2_000), events: self.events.min(3_000), rounds: 1 }
    }
}

/// Makes each scan of the relay a full one, as if it kept no scan watermark.
const FULL_SCANS_ONLY: (&str, &str) = ("ORDERS_RELAY_FULL_SCAN", "1ms");

/// A system of its own, with or without a transaction that holds back vacuum.
struct Side {
    name: &'static str,
    rig: Rig,
    template: uuid::Uuid,
    /// The long transaction. Vacuum keeps every row that its snapshot may see.
    long_transaction: Option<PgConnection>,
    rates: Vec<f64>,
}

pub(crate) async fn run(options: &Options, setup: &Setup) -> Result<Report> {
    let full_scans = setup.with_setting(FULL_SCANS_ONLY.0, FULL_SCANS_ONLY.1);
    let mut sides = [
        Side::start("vacuum works", setup, false).await?,
        Side::start("vacuum held back", setup, true).await?,
        Side::start("vacuum held back, full scans", &full_scans, true).await?,
    ];
    for side in &mut sides {
        side.publish_and_mark(options.dead).await?;
    }
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}", options.rounds);
        for side in &mut sides {
            let drain = side.turn(options.events).await?;
            side.rates.push(drain.per_second);
        }
    }
    let conditions = sides[0].rig.conditions().await?;
    let mut figures = Vec::new();
    for side in &sides {
        figures.push(Figure::new(side.name, "events/s", side.rates.clone())?);
    }
    let with = Figure::ratio("held back : works", &figures[1], &figures[0])?.goal(Goal::AtLeast(0.85));
    let without = Figure::ratio("held back, full scans : works", &figures[2], &figures[0])?;
    figures.extend([with, without]);
    for side in sides {
        side.stop().await;
    }
    let notes = vec![
        format!(
            "{} events were published while a transaction held back vacuum, then {} a turn; consumers are stopped",
            options.dead, options.events
        ),
        "three sets of servers and services; two are idle while the third has its turn".into(),
    ];
    Ok(Report::new("vacuum", setup, conditions, figures, notes))
}

impl Side {
    async fn start(name: &'static str, setup: &Setup, held_back: bool) -> Result<Self> {
        let rig = Rig::start(setup).await?;
        let template = rig.place(orders_sql::TEMPLATE_ORDER).await?;
        rig.everything_applied(Duration::from_secs(30)).await?;
        for service in ["inventory", "billing", "orders"] {
            rig.stop_service(service).await?;
        }
        let long_transaction = if held_back {
            // As the auditor: PostgreSQL ends a service's session that is idle in a transaction for 30 s.
            let mut session = rig.connect(Login::Auditor).await?;
            sqlx::raw_sql("begin isolation level repeatable read; select 1").execute(&mut session).await?;
            Some(session)
        } else {
            None
        };
        Ok(Self { name, rig, template, long_transaction, rates: Vec::new() })
    }

    /// Writes many events and marks them as published. Their entries in the index of pending events are then dead.
    async fn publish_and_mark(&self, events: u32) -> Result<()> {
        eprintln!("{}: writing {events} events and marking them as published", self.name);
        self.rig.fill_outbox(self.template, events).await?;
        let mut database = self.rig.connect(Login::Orders).await?;
        sqlx::query("set statement_timeout = 0").execute(&mut database).await?;
        let mark = "update outbox set published_at = clock_timestamp() where published_at is null";
        let marked = sqlx::query(mark).execute(&mut database).await?.rows_affected();
        ensure!(
            marked >= u64::from(events),
            "failed to mark {events} events as published: {marked} were pending"
        );
        sqlx::query("vacuum analyze outbox").execute(&mut database).await?;
        Ok(())
    }

    async fn turn(&mut self, events: u32) -> Result<Drain> {
        self.rig.fill_outbox(self.template, events).await?;
        let drained = drain(&self.rig, events).await;
        let drained = drained.with_context(|| format!("failed to measure `{}`", self.name))?;
        if let Some(session) = &mut self.long_transaction {
            // If it had ended, vacuum would have worked, and the figure would be wrong.
            let alive = sqlx::query("select 1").execute(session).await;
            alive.context("failed to hold back vacuum: the long transaction has ended")?;
        }
        Ok(drained)
    }

    async fn stop(self) {
        if let Some(session) = self.long_transaction {
            let _ = session.close().await;
        }
        self.rig.stop().await;
    }
}
