//! How old events leave: in small windows, in one statement, or with their partition.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use sqlx::{PgConnection, Row as _};

use crate::{
    bench_database::BenchDatabase,
    history,
    pgbench::Pgbench,
    report::{Figure, Goal, Report},
    retention_sql,
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Old events that are to go.
    #[arg(long, default_value_t = 1_000_000)]
    events: i64,
    /// For how long the writers' rate is taken, in each turn.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// How often writers are measured with and without windows going, in turns.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// As the order service pauses between two windows.
const PAUSE: Duration = Duration::from_millis(20);
const WRITERS: u32 = 8;

/// One way to erase, done.
struct Erased {
    seconds: f64,
    wal_bytes: f64,
}

pub(crate) async fn run(options: &Options) -> Result<Report> {
    let server = BenchDatabase::start().await?;
    let mut session = server.connect().await?;
    sqlx::query("set statement_timeout = 0").execute(&mut session).await?;
    let mut figures = Vec::new();

    // Writers beside windows and without, in turns, while there is enough to erase.
    let writers = Pgbench::new(server.url().to_owned(), WRITERS, Vec::new())?;
    let (statement, for_) = (retention_sql::write("outbox"), Duration::from_secs(options.seconds));
    let (mut alone, mut beside, mut erased) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=options.rounds.max(1) {
        eprintln!("round {round} of {}: writers alone, and beside windows", options.rounds.max(1));
        fill(&server, &mut session, options.events).await?;
        alone.push(writers.run(&statement, for_, None).await?.per_second);
        let (run, gone) =
            tokio::join!(writers.run(&statement, for_, None), windows(&mut session, Some(for_)));
        beside.push(run?.per_second);
        erased.push(gone? / for_.as_secs_f64());
    }
    let alone = Figure::new("event writes alone", "writes/s", alone)?;
    let beside = Figure::new("event writes beside windows", "writes/s", beside)?;
    let ratio = Figure::ratio("writes, beside windows : alone", &beside, &alone)?.goal(Goal::AtLeast(0.9));
    figures.extend([alone, beside, ratio]);
    figures.push(Figure::new("events erased meanwhile", "events/s", erased)?);

    // Each way by itself: time, log, and what is left of the table.
    eprintln!("windows, one statement, and a partition, by themselves");
    fill(&server, &mut session, options.events).await?;
    let all = measured(&mut session, async |session| windows(session, None).await.map(drop)).await?;
    figures.extend(of("windows with pauses", &all, options.events)?);
    let (before, after) = sizes(&mut session).await?;
    figures.push(Figure::new("windows: table and indexes, before vacuum", "MB", vec![before])?);
    figures.push(Figure::new("windows: after vacuum (free for new rows)", "MB", vec![after])?);
    fill(&server, &mut session, options.events).await?;
    let (_, refilled) = sizes(&mut session).await?;
    figures.push(Figure::new("windows: filled again", "MB", vec![refilled])?);
    let once = "delete from outbox where published_at < clock_timestamp() - interval '7 days'";
    let all = measured(&mut session, async |session| {
        sqlx::query(once).execute(session).await.map(drop).context("delete")
    })
    .await?;
    figures.extend(of("one delete", &all, options.events)?);
    sqlx::raw_sql(retention_sql::PARTITIONED).execute(&mut session).await.context("partitions")?;
    fill(&server, &mut session, options.events).await?;
    sqlx::query(retention_sql::FILL_PARTITIONED).execute(&mut session).await.context("fill partitions")?;
    server.checkpoint().await?;
    let all = measured(&mut session, async |session| {
        sqlx::query("drop table parted_old").execute(session).await.map(drop).context("drop")
    })
    .await?;
    figures.extend(of("partition dropped", &all, options.events)?);

    // What partitions cost those who write, every day.
    let (mut plain, mut parted) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds.max(1) {
        plain.push(writers.run(&retention_sql::write("outbox"), for_, None).await?.per_second);
        parted.push(writers.run(&retention_sql::write("parted"), for_, None).await?.per_second);
    }
    let plain = Figure::new("event writes, one table", "writes/s", plain)?;
    let parted = Figure::new("event writes, partitions", "writes/s", parted)?;
    figures.push(Figure::ratio("writes, partitions : one table", &parted, &plain)?);
    figures.extend([plain, parted]);
    let notes = vec![
        format!("{} old events in each turn, {WRITERS} writers; windows of 1,000 with {PAUSE:?} between", options.events),
        "partitions: without the unique keys on event_id and (aggregate_id, aggregate_version), which they cannot have"
            .into(),
    ];
    Ok(Report { benchmark: "retention", conditions: server.conditions().await?, figures, notes })
}

/// An outbox with so many events that are due to go, and nothing else.
async fn fill(server: &BenchDatabase, session: &mut PgConnection, events: i64) -> Result<()> {
    sqlx::query("delete from outbox").execute(&mut *session).await?;
    sqlx::query("vacuum outbox").execute(&mut *session).await?;
    history::write(session, events, "8 days").await?;
    server.checkpoint().await
}

/// Window by window, to the end or for so long; returns how many events went.
async fn windows(session: &mut PgConnection, for_: Option<Duration>) -> Result<f64> {
    let start = Instant::now();
    let (mut behind, mut erased) = (0_i64, 0_i64);
    while for_.is_none_or(|for_| start.elapsed() < for_) {
        let row = sqlx::query(retention_sql::WINDOW).bind(behind).fetch_one(&mut *session).await?;
        let Some(last) = row.try_get(0)? else { break };
        behind = last;
        erased += row.try_get::<i64, _>(1)?;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(erased as f64)
}

async fn measured(
    session: &mut PgConnection,
    work: impl AsyncFnOnce(&mut PgConnection) -> Result<()>,
) -> Result<Erased> {
    const LOG: &str = "select (pg_current_wal_lsn() - '0/0')::float8";
    let before: f64 = sqlx::query_scalar(LOG).fetch_one(&mut *session).await?;
    let start = Instant::now();
    work(session).await?;
    let seconds = start.elapsed().as_secs_f64();
    let after: f64 = sqlx::query_scalar(LOG).fetch_one(session).await?;
    Ok(Erased { seconds, wal_bytes: after - before })
}

fn of(what: &str, erased: &Erased, events: i64) -> Result<[Figure; 2]> {
    Ok([
        Figure::new(format!("{what}: time"), "s", vec![erased.seconds])?,
        Figure::new(format!("{what}: log"), "bytes/event", vec![erased.wal_bytes / events as f64])?,
    ])
}

/// The table with its indexes, before and after vacuum.
async fn sizes(session: &mut PgConnection) -> Result<(f64, f64)> {
    const SIZE: &str = "select pg_total_relation_size('outbox')::float8 / 1e6";
    let before = sqlx::query_scalar(SIZE).fetch_one(&mut *session).await?;
    sqlx::query("vacuum outbox").execute(&mut *session).await?;
    Ok((before, sqlx::query_scalar(SIZE).fetch_one(session).await?))
}
