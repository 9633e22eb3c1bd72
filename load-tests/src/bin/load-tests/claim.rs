//! What a look into the outbox costs with a short past and with a long one.

use std::time::Instant;

use anyhow::{Context as _, Result};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::{
    bench_database::BenchDatabase,
    claim_sql, history,
    report::{Figure, Goal, Report},
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Published events in the short past.
    #[arg(long, default_value_t = 10_000)]
    short: i64,
    /// Published events in the long one. Ten million take about three gigabytes of disk.
    #[arg(long, default_value_t = 10_000_000)]
    long: i64,
    /// How often each is measured, in turns.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// How often a statement is run in each turn.
const TIMES: u32 = 300;
/// Events that are due while it is measured.
const OWED: i64 = 500;

pub(crate) async fn run(options: &Options) -> Result<Report> {
    // Two servers, so that neither's cache or log is the other's.
    let (short, long) = (BenchDatabase::start().await?, BenchDatabase::start().await?);
    let (mut one, mut other) = (short.connect().await?, long.connect().await?);
    for (server, session, events) in [(&short, &mut one, options.short), (&long, &mut other, options.long)] {
        eprintln!("writing {events} published events");
        history::write(session, events, "1 day").await?;
        owe(session).await?;
        server.checkpoint().await?;
    }
    let statements = claim_sql::statements(0);
    let mut times = vec![[Vec::new(), Vec::new()]; statements.len()];
    let mut plans = Vec::new();
    for round in 1..=options.rounds.max(1) {
        eprintln!("round {round} of {}", options.rounds.max(1));
        for ((what, statement), [short, long]) in statements.iter().zip(&mut times) {
            short.push(time(&mut one, statement).await?);
            long.push(time(&mut other, statement).await?);
            if round == 1 {
                for (past, session) in [("short", &mut one), ("long", &mut other)] {
                    plans.push(format!("{what}, {past} past: {}", explain(session, statement).await?));
                }
            }
        }
    }
    let mut figures = Vec::new();
    for ((what, _), [short, long]) in statements.iter().zip(times) {
        let short = Figure::new(format!("{what}: {} published", options.short), "ms", short)?;
        let long = Figure::new(format!("{what}: {} published", options.long), "ms", long)?;
        let ratio = Figure::ratio(&format!("{what}, long : short"), &long, &short)?;
        figures.extend([short, long, ratio.goal(Goal::AtMost(1.2))]);
    }
    plans.insert(
        0,
        format!("{TIMES} runs of each statement in each turn, with {OWED} events due and no floor"),
    );
    Ok(Report { benchmark: "claim", conditions: long.conditions().await?, figures, notes: plans })
}

async fn owe(session: &mut PgConnection) -> Result<()> {
    let last = "update outbox set published_at = null where seq > (select max(seq) from outbox) - $1";
    sqlx::query(last).bind(OWED).execute(&mut *session).await?;
    sqlx::query("vacuum analyze outbox").execute(session).await?;
    Ok(())
}

/// Milliseconds for one run, the round trip over loopback included.
async fn time(session: &mut PgConnection, statement: &str) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..TIMES {
        sqlx::query(AssertSqlSafe(statement.to_owned())).fetch_all(&mut *session).await?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e3 / f64::from(TIMES))
}

/// Which indexes were used, and how many pages were touched.
async fn explain(session: &mut PgConnection, statement: &str) -> Result<String> {
    let explain = format!("explain (analyze, buffers, costs off, timing off, format json) {statement}");
    let plan: serde_json::Value =
        sqlx::query_scalar(AssertSqlSafe(explain)).fetch_one(session).await.context("explain")?;
    let top = &plan[0]["Plan"];
    let pages =
        top["Shared Hit Blocks"].as_i64().unwrap_or(0) + top["Shared Read Blocks"].as_i64().unwrap_or(0);
    let mut paths = Vec::new();
    collect(top, &mut paths);
    paths.dedup();
    Ok(format!("{pages} pages; {}", paths.join(", ")))
}

fn collect(node: &serde_json::Value, paths: &mut Vec<String>) {
    if let (Some(kind), Some(of)) =
        (node["Node Type"].as_str(), node["Index Name"].as_str().or(node["Relation Name"].as_str()))
    {
        paths.push(format!("{kind} {of}"));
    }
    for child in node["Plans"].as_array().into_iter().flatten() {
        collect(child, paths);
    }
}
