//! Another session's transaction: one that holds a lock, and one that holds an old snapshot.

use std::time::Duration;

use anyhow::Result;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Refusals, Report};

pub(in crate::drills) const POOL_EXHAUSTED: Drill = Drill {
    name: "pool-exhausted",
    group: Group::Database,
    teaches: "A bounded pool with a deadline turns a stuck table into a quick 503 instead of a queue without end.",
    question: "A careless migration locks the table of orders for some seconds. Does the service still answer anything?",
    claim: "While every connection waits for a lock, further orders are refused within seconds, the service answers its \
            other pages, and it recovers by itself.",
    outage: Duration::from_secs(8),
    system: Subject::Running,
    run: |run| Box::pin(lock_orders(run)),
};

pub(in crate::drills) const OLD_SNAPSHOT: Drill = Drill {
    name: "old-snapshot",
    group: Group::Database,
    teaches: "A forgotten transaction holds back vacuum for the whole database: dead index entries pile up where the relay \
              reads.",
    question: "A report runs for a long time in one transaction. Why could the relay become slower and slower?",
    claim: "While an old snapshot keeps every dead row, orders are accepted and published without a backlog.",
    outage: Duration::from_secs(15),
    system: Subject::Running,
    run: |run| Box::pin(hold_snapshot(run)),
};

async fn lock_orders(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    let seconds = run.outage.as_secs();
    run.phase("outage", format!("locked the table orders.orders for {seconds} s"));
    let lock = format!(
        "begin; lock table orders.orders in access exclusive mode; select pg_sleep({seconds}); commit"
    );
    let refused = run.felt("orders are refused with 503, and the metrics page answers", async || {
        let refused = run.system.metric("orders", "http_request_seconds_count{status=\"503\"}").await?;
        Ok((refused > 0.0)
            .then(|| format!("{refused} orders were refused with 503; the metrics page answers")))
    });
    let (locked, refused) = tokio::join!(run.system.execute_as("orders", &lock), refused);
    locked?;
    let summary = run.end(load).await?;
    run.report(vec![refused], summary, Refusals::AreExpected).await
}

async fn hold_snapshot(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    let seconds = run.outage.as_secs();
    let snapshot = format!(
        "begin isolation level repeatable read; select count(*) from orders.outbox; select pg_sleep({seconds}); commit"
    );
    run.phase("outage", format!("a transaction holds a snapshot for {seconds} s"));
    let held_back = run.felt("the snapshot is old", async || {
        let age = "select coalesce(max(age(backend_xmin)), 0)::text from pg_stat_activity
                   where query like '%pg_sleep%' and pid <> pg_backend_pid()";
        let age: u64 = run.system.read(age).await?.trim().parse()?;
        Ok((age > 500).then(|| format!("the snapshot is {age} transactions old")))
    });
    let (held, held_back, accepted) =
        tokio::join!(run.system.execute_as("orders", &snapshot), held_back, run.accepted_meanwhile());
    held?;
    let pending = run.system.metric("orders", "outbox_pending").await?;
    let summary = run.end(load).await?;
    let mut report = run.report(vec![held_back, accepted], summary, Refusals::BreakTheClaim).await?;
    if pending > f64::from(2 * run.rate) {
        report.refute(format!("{pending} events were waiting at the end of the snapshot"));
    }
    Ok(report)
}
