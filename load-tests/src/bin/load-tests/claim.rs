//! The time of the relay's claim, with few and with many published events in the outbox.

use std::time::Instant;

use anyhow::{Context as _, Result};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::{
    bench_database::BenchDatabase,
    history,
    report::{Figure, Goal, Report},
    setup::Setup,
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Published events in the short history.
    #[arg(long, default_value_t = 10_000)]
    short: i64,
    /// Published events in the long history. Ten million take about three gigabytes of disk.
    #[arg(long, default_value_t = 10_000_000)]
    long: i64,
    /// How often each is measured, alternately.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How often a statement is run in each turn.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
}

impl Options {
    pub(crate) fn smoke(self) -> Self {
        Self { short: self.short.min(1_000), long: self.long.min(5_000), rounds: 1, runs: self.runs.min(20) }
    }
}

/// A claim with the relay's defaults: 8 of 16 lanes, 500 events, and all lanes read from their beginning.
const STATEMENTS: [(&str, &str); 1] =
    [("claim", "select * from outbox_claim(0, 8, 500, array_fill(0::bigint, array[16]))")];

/// Events that are pending and due while the statements run.
const PENDING: i64 = 500;

pub(crate) async fn run(options: &Options, setup: &Setup) -> Result<Report> {
    let statements = STATEMENTS;
    // Two servers, so that they share neither cache nor log.
    let (short, long) = (BenchDatabase::start(setup).await?, BenchDatabase::start(setup).await?);
    let (mut one, mut other) = (short.connect().await?, long.connect().await?);
    for (server, session, events) in [(&short, &mut one, options.short), (&long, &mut other, options.long)] {
        eprintln!("writing {events} published events");
        history::write(session, events, "1 day").await?;
        make_pending(session).await?;
        server.checkpoint().await?;
    }
    let mut times = vec![[Vec::new(), Vec::new()]; statements.len()];
    let mut notes = vec![format!(
        "{} runs of each statement in each turn, as a full scan, with {PENDING} events due",
        options.runs
    )];
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}", options.rounds);
        for ((what, statement), [short, long]) in statements.iter().zip(&mut times) {
            short.push(time(&mut one, statement, options.runs).await?);
            long.push(time(&mut other, statement, options.runs).await?);
            if round == 1 {
                for (history, session) in [("short", &mut one), ("long", &mut other)] {
                    let plan = explain(session, statement).await;
                    let plan = plan.with_context(|| format!("failed to explain `{what}`"))?;
                    notes.push(format!("{what}, {history} history: {plan}"));
                }
            }
        }
    }
    let mut figures = Vec::new();
    for ((what, _), [short, long]) in statements.iter().zip(times) {
        let short = Figure::new(format!("{what}: {} published", options.short), "ms", short)?;
        let long = Figure::new(format!("{what}: {} published", options.long), "ms", long)?;
        let ratio = Figure::ratio(&format!("{what}, long : short"), &long, &short)?;
        figures.extend([short, long, ratio.goal(Goal::AtMost(1.1))]);
    }
    Ok(Report::new("claim", setup, long.conditions().await?, figures, notes))
}

/// Makes the last events pending again.
async fn make_pending(session: &mut PgConnection) -> Result<()> {
    let last = "update outbox set published_at = null where seq > (select max(seq) from outbox) - $1";
    sqlx::query(last).bind(PENDING).execute(&mut *session).await?;
    sqlx::query("vacuum analyze outbox").execute(session).await?;
    Ok(())
}

/// Returns the milliseconds of one run, the round trip over loopback included.
async fn time(session: &mut PgConnection, statement: &str, runs: u32) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..runs {
        sqlx::query(AssertSqlSafe(statement.to_owned())).fetch_all(&mut *session).await?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e3 / f64::from(runs))
}

/// Names the indexes that a statement uses, and how many pages it reads.
async fn explain(session: &mut PgConnection, statement: &str) -> Result<String> {
    let explain = format!("explain (analyze, buffers, costs off, timing off, format json) {statement}");
    let plan: serde_json::Value = sqlx::query_scalar(AssertSqlSafe(explain)).fetch_one(session).await?;
    let top = &plan[0]["Plan"];
    let pages =
        top["Shared Hit Blocks"].as_i64().unwrap_or(0) + top["Shared Read Blocks"].as_i64().unwrap_or(0);
    let mut scans = Vec::new();
    collect_scans(top, &mut scans);
    scans.dedup();
    Ok(format!("{pages} pages; {}", scans.join(", ")))
}

fn collect_scans(node: &serde_json::Value, scans: &mut Vec<String>) {
    if let (Some(kind), Some(of)) =
        (node["Node Type"].as_str(), node["Index Name"].as_str().or(node["Relation Name"].as_str()))
    {
        scans.push(format!("{kind} {of}"));
    }
    for child in node["Plans"].as_array().into_iter().flatten() {
        collect_scans(child, scans);
    }
}
