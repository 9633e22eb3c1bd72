//! What reads a service's log stops reading.

use std::time::Duration;

use anyhow::Result;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::http;
use crate::own_system::OwnSystem;

pub(in crate::drills) const DRILL: Drill = Drill {
    name: "log-reader-stalls",
    group: Group::Service,
    teaches: "Standard output is a pipe, and a pipe can be full. A service that waits for its log is as slow as the reader of \
              its log.",
    question: "Whatever reads the order service's log is stopped with SIGSTOP. How long does the service go on?",
    claim: "While no one reads its log, the order service accepts orders and answers `/livez`. Afterwards a line says how many \
            lines were dropped.",
    outage: Duration::from_secs(10),
    system: Subject::Own(piped_logs),
    run: |run| Box::pin(stall(run)),
};

/// At `debug` each request is a line more: a pipe holds 64 KiB.
fn piped_logs() -> OwnSystem {
    let mut own = OwnSystem::default();
    own.setup.piped_logs = true;
    own.setup = own.setup.with("ORDERS_LOG", "debug");
    own
}

async fn stall(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    let processes = &run.own()?.processes;
    processes.pause_log_reader("orders")?;
    run.phase("outage", "stopped the reader of the order service's log with SIGSTOP");
    let accepted = run.accepted_meanwhile().await;
    let alive = http::get(&format!("{}/livez", run.system.orders_url())).await;
    let dropped = run.system.metric("orders", "log_lines_dropped_total").await;
    processes.resume_log_reader("orders")?;
    let told = run
        .felt("a line says how many lines were dropped", async || {
            let log = processes.log("orders")?;
            Ok(log.lines().find(|line| line.contains("log lines dropped")).map(str::to_owned))
        })
        .await;
    let summary = run.end(load).await?;
    let full = dropped.as_ref().is_ok_and(|dropped| *dropped > 0.0);
    let lost = Fact { what: format!("{} lines were dropped", dropped.unwrap_or_default()), observed: full };
    let mut report = run.report(vec![lost], summary, Refusals::BreakTheClaim).await?;
    report.claim(accepted);
    report.claim(Fact { what: "/livez answered meanwhile".to_owned(), observed: alive.is_ok() });
    report.claim(told);
    Ok(report)
}
