//! Ways to erase old events: in small windows, in one statement, and with their partition.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use sqlx::PgConnection;

use crate::{
    bench_database::BenchDatabase,
    history,
    pgbench::Pgbench,
    product_sql::ProductSql,
    report::{Figure, Goal, Report},
    retention_sql::{self, PAUSE, Windows},
    setup::Setup,
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Old events to erase.
    #[arg(long, default_value_t = 1_000_000)]
    events: u32,
    /// How many seconds the writers' rate is measured in each turn.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// How often writers are measured with and without windows, alternately.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

impl Options {
    pub(crate) fn smoke(self) -> Self {
        Self { events: self.events.min(5_000), seconds: 1, rounds: 1 }
    }
}

/// The age of the old events, as PostgreSQL writes an interval: more than the seven days that events are kept.
const OLD: &str = "8 days";
const WRITERS: u32 = 8;

/// The server, the session that erases, and what all ways to erase need.
struct Bench<'a> {
    options: &'a Options,
    server: BenchDatabase,
    session: PgConnection,
    writers: Pgbench,
    windows: Windows,
}

pub(crate) async fn run(options: &Options, setup: &Setup) -> Result<Report> {
    let windows = Windows::new(&ProductSql::read()?)?;
    let server = BenchDatabase::start(setup).await?;
    let mut session = server.connect().await?;
    sqlx::query("set statement_timeout = 0").execute(&mut session).await?;
    let writers = Pgbench::new(server.url().to_owned(), WRITERS, Vec::new())?;
    let mut bench = Bench { options, server, session, writers, windows };
    let mut figures = bench.writers_beside_windows().await?;
    figures.extend(bench.windows_alone().await?);
    figures.extend(bench.one_delete().await?);
    figures.extend(bench.partition().await?);
    figures.extend(bench.writers_into_partitions().await?);
    let notes = vec![
        format!(
            "{} old events in each turn, {WRITERS} writers; windows of 1,000 with {PAUSE:?} between",
            options.events
        ),
        "partitions: without the unique keys on event_id and (aggregate_id, aggregate_version), which they cannot have"
            .into(),
    ];
    Ok(Report::new("retention", setup, bench.server.conditions().await?, figures, notes))
}

impl Bench<'_> {
    /// Measures writers alone and beside windows, alternately, while there are events to erase.
    async fn writers_beside_windows(&mut self) -> Result<Vec<Figure>> {
        let (script, turn) = (retention_sql::write("outbox"), Duration::from_secs(self.options.seconds));
        let (mut alone, mut beside, mut erased) = (Vec::new(), Vec::new(), Vec::new());
        for round in 1..=self.options.rounds {
            eprintln!("round {round} of {}: writers alone, and beside windows", self.options.rounds);
            self.fill().await?;
            alone.push(self.writers.run(&script, turn, None).await?.per_second);
            let windows = self.windows.erase(&mut self.session, Some(turn));
            let (run, count) = tokio::join!(self.writers.run(&script, turn, None), windows);
            beside.push(run?.per_second);
            erased.push(f64::from(count?) / turn.as_secs_f64());
        }
        let alone = Figure::new("event writes alone", "writes/s", alone)?;
        let beside = Figure::new("event writes beside windows", "writes/s", beside)?;
        let ratio =
            Figure::ratio("writes, beside windows : alone", &beside, &alone)?.goal(Goal::AtLeast(0.9));
        Ok(vec![alone, beside, ratio, Figure::new("events erased meanwhile", "events/s", erased)?])
    }

    async fn windows_alone(&mut self) -> Result<Vec<Figure>> {
        eprintln!("erasing in windows");
        self.fill().await?;
        let meter = Meter::start(&mut self.session).await?;
        let erased = self.windows.erase(&mut self.session, None).await?;
        let cost = meter.stop(&mut self.session).await?;
        ensure!(
            erased == self.options.events,
            "failed to erase {} events in windows: {erased} were erased",
            self.options.events
        );
        let mut figures = Vec::from(self.figures("windows with pauses", &cost)?);
        let (before, after) = self.sizes().await?;
        figures.push(Figure::new("windows: table and indexes, before vacuum", "MB", vec![before])?);
        figures.push(Figure::new("windows: after vacuum (free for new rows)", "MB", vec![after])?);
        self.fill().await?;
        let (_, refilled) = self.sizes().await?;
        figures.push(Figure::new("windows: filled again", "MB", vec![refilled])?);
        Ok(figures)
    }

    /// Erases the events that [`Bench::windows_alone`] wrote last.
    async fn one_delete(&mut self) -> Result<[Figure; 2]> {
        eprintln!("erasing in one statement");
        let statement = "delete from outbox where published_at < clock_timestamp() - interval '7 days'";
        let meter = Meter::start(&mut self.session).await?;
        sqlx::query(statement).execute(&mut self.session).await.context("failed to delete the events")?;
        let cost = meter.stop(&mut self.session).await?;
        self.figures("one delete", &cost)
    }

    async fn partition(&mut self) -> Result<[Figure; 2]> {
        eprintln!("dropping a partition");
        let created = sqlx::raw_sql(retention_sql::PARTITIONED).execute(&mut self.session).await;
        created.context("failed to create partitions")?;
        self.fill().await?;
        let filled = sqlx::query(retention_sql::FILL_PARTITIONED).execute(&mut self.session).await;
        filled.context("failed to fill partitions")?;
        self.server.checkpoint().await?;
        let meter = Meter::start(&mut self.session).await?;
        let dropped = sqlx::query("drop table parted_old").execute(&mut self.session).await;
        dropped.context("failed to drop a partition")?;
        let cost = meter.stop(&mut self.session).await?;
        self.figures("partition dropped", &cost)
    }

    /// Measures what partitions cost the writers.
    async fn writers_into_partitions(&self) -> Result<[Figure; 3]> {
        let turn = Duration::from_secs(self.options.seconds);
        let (mut plain, mut parted) = (Vec::new(), Vec::new());
        for round in 1..=self.options.rounds {
            eprintln!(
                "round {round} of {}: writers into one table, and into partitions",
                self.options.rounds
            );
            plain.push(self.writers.run(&retention_sql::write("outbox"), turn, None).await?.per_second);
            parted.push(self.writers.run(&retention_sql::write("parted"), turn, None).await?.per_second);
        }
        let plain = Figure::new("event writes, one table", "writes/s", plain)?;
        let parted = Figure::new("event writes, partitions", "writes/s", parted)?;
        Ok([Figure::ratio("writes, partitions : one table", &parted, &plain)?, plain, parted])
    }

    /// Replaces the outbox's content by old events.
    async fn fill(&mut self) -> Result<()> {
        sqlx::query("delete from outbox").execute(&mut self.session).await?;
        sqlx::query("vacuum outbox").execute(&mut self.session).await?;
        history::write(&mut self.session, self.options.events.into(), OLD).await?;
        self.server.checkpoint().await
    }

    /// Returns the megabytes of the table with its indexes, before and after vacuum.
    async fn sizes(&mut self) -> Result<(f64, f64)> {
        const SIZE: &str = "select pg_total_relation_size('outbox')::float8 / 1e6";
        let before = sqlx::query_scalar(SIZE).fetch_one(&mut self.session).await?;
        sqlx::query("vacuum outbox").execute(&mut self.session).await?;
        Ok((before, sqlx::query_scalar(SIZE).fetch_one(&mut self.session).await?))
    }

    fn figures(&self, what: &str, cost: &Cost) -> Result<[Figure; 2]> {
        let per_event = cost.log_bytes / f64::from(self.options.events);
        Ok([
            Figure::new(format!("{what}: time"), "s", vec![cost.seconds])?,
            Figure::new(format!("{what}: log"), "bytes/event", vec![per_event])?,
        ])
    }
}

/// The time and the write-ahead log that one way to erase takes.
struct Cost {
    seconds: f64,
    log_bytes: f64,
}

/// Measures a [`Cost`] from its start on.
struct Meter {
    start: Instant,
    log_position: f64,
}

impl Meter {
    async fn start(session: &mut PgConnection) -> Result<Self> {
        let log_position = log_position(session).await?;
        Ok(Self { start: Instant::now(), log_position })
    }

    async fn stop(self, session: &mut PgConnection) -> Result<Cost> {
        let seconds = self.start.elapsed().as_secs_f64();
        Ok(Cost { seconds, log_bytes: log_position(session).await? - self.log_position })
    }
}

async fn log_position(session: &mut PgConnection) -> Result<f64> {
    let position = sqlx::query_scalar("select (pg_current_wal_lsn() - '0/0')::float8").fetch_one(session);
    position.await.context("failed to read the position of the log")
}
