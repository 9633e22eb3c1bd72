//! What a long transaction elsewhere, which holds back vacuum, does to the relay: with the floor that it keeps, and with
//! a relay that makes every look a full one.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sqlx::{Connection as _, PgConnection};

use crate::{
    orders_sql,
    relay::{Drain, drain},
    report::{Figure, Goal, Report},
    rig::{Login, Rig},
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Events that were published while vacuum was held back: dead entries that a full look walks over.
    #[arg(long, default_value_t = 300_000)]
    dead: i64,
    /// The backlog of each turn.
    #[arg(long, default_value_t = 30_000)]
    events: u32,
    /// How often each is measured, in turns.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// What makes each look of the relay a full one.
const NO_FLOOR: (&str, &str) = ("ORDERS_RELAY_FULL_LOOK", "1ms");

/// A relay on one set of servers, in whose database nothing or much is in the way.
struct Side {
    name: &'static str,
    rig: Rig,
    template: uuid::Uuid,
    /// Its snapshot is what vacuum waits for.
    elsewhere: Option<PgConnection>,
    rates: Vec<f64>,
}

pub(crate) async fn run(options: &Options, settings: &[(String, String)]) -> Result<Report> {
    let mut sides = [
        Side::start("vacuum works", settings, None, false).await?,
        Side::start("vacuum held back", settings, None, true).await?,
        Side::start("vacuum held back, no floor", settings, Some(NO_FLOOR), true).await?,
    ];
    for side in &mut sides {
        side.die(options.dead).await?;
    }
    for round in 1..=options.rounds.max(1) {
        eprintln!("round {round} of {}", options.rounds.max(1));
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
    let with = Figure::ratio("held back : works", &figures[1], &figures[0])?.goal(Goal::AtLeast(0.8));
    let without = Figure::ratio("held back, no floor : works", &figures[2], &figures[0])?;
    figures.extend([with, without]);
    for side in sides {
        side.stop().await;
    }
    let notes = vec![
        format!(
            "{} events were published while a transaction held back vacuum, then {} a turn; nobody consumes",
            options.dead, options.events
        ),
        "three sets of servers and services; two are idle while the third has its turn".into(),
    ];
    Ok(Report { benchmark: "vacuum", conditions, figures, notes })
}

impl Side {
    async fn start(
        name: &'static str,
        settings: &[(String, String)],
        more: Option<(&str, &str)>,
        held_back: bool,
    ) -> Result<Self> {
        let mut settings = settings.to_vec();
        settings.extend(more.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let rig = Rig::start(settings).await?;
        let template = rig.place(orders_sql::TEMPLATE_ORDER).await?;
        rig.everything_applied(Duration::from_secs(30)).await?;
        for service in ["inventory", "billing", "orders"] {
            rig.stop_service(service).await?;
        }
        let elsewhere = if held_back {
            // The auditor, because the services' own sessions are cut off after 30 s of doing nothing.
            let mut session = rig.connect(Login::Auditor).await?;
            sqlx::raw_sql("begin isolation level repeatable read; select 1").execute(&mut session).await?;
            Some(session)
        } else {
            None
        };
        Ok(Self { name, rig, template, elsewhere, rates: Vec::new() })
    }

    /// Publishes many events as far as the database can tell: entries of the index that are dead from now on.
    async fn die(&self, events: i64) -> Result<()> {
        eprintln!("{}: {events} events come and go", self.name);
        self.rig.fill_outbox(self.template, u32::try_from(events)?).await?;
        let mut database = self.rig.connect(Login::Orders).await?;
        sqlx::query("set statement_timeout = 0").execute(&mut database).await?;
        let gone = "update outbox set published_at = clock_timestamp() where published_at is null";
        let gone = sqlx::query(gone).execute(&mut database).await?.rows_affected();
        ensure!(gone >= u64::try_from(events)?, "{gone} events were published instead of {events}");
        sqlx::query("vacuum analyze outbox").execute(&mut database).await?;
        Ok(())
    }

    async fn turn(&mut self, events: u32) -> Result<Drain> {
        self.rig.fill_outbox(self.template, events).await?;
        let drained = drain(&self.rig, events).await.with_context(|| self.name)?;
        if let Some(elsewhere) = &mut self.elsewhere {
            // Still there: otherwise vacuum was not held back, and the figure would be another's.
            sqlx::query("select 1").execute(elsewhere).await.context("the long transaction has ended")?;
        }
        Ok(drained)
    }

    async fn stop(self) {
        if let Some(elsewhere) = self.elsewhere {
            let _ = elsewhere.close().await;
        }
        self.rig.stop().await;
    }
}
