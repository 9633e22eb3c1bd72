//! The payment provider, another company's system: away, or failing in every way that it can.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::http;
use crate::lab::Setup;
use crate::own_system::OwnSystem;
use crate::target::Target;

pub(in crate::drills) const AWAY: Drill = Drill {
    name: "provider-away",
    group: Group::Service,
    teaches: "What depends on another company waits in a table with a due time, not in a request and not in a queue.",
    question: "The payment provider is down. Are orders accepted? What does billing do with its messages?",
    claim: "While the provider is down, orders are accepted and stock is reserved. Each customer is charged once afterwards, and \
            no order times out.",
    outage: Duration::from_secs(10),
    system: Subject::Running,
    run: |run| Box::pin(away(run)),
};

pub(in crate::drills) const FAULTS: Drill = Drill {
    name: "provider-faults",
    group: Group::Service,
    teaches: "An error says nothing about whether the charge was made. Only the same key makes asking again safe.",
    question: "A third of the provider's answers are errors, and half of those came after the charge. Who pays twice?",
    claim: "Whatever the provider answers, no customer is charged or refunded twice, and every order ends.",
    outage: Duration::from_secs(15),
    // A call that hangs would otherwise hold its payment for half a minute.
    system: Subject::Own(|| OwnSystem {
        setup: Setup::default().with("BILLING_PROVIDER_DEADLINE", "500ms"),
        ..OwnSystem::default()
    }),
    run: |run| Box::pin(faults(run)),
};

async fn away(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    let killed = run.kill(Target::Service("provider".to_owned())).await?;
    run.phase("outage", "killed the payment provider");
    let waiting = run
        .felt("payments wait for the provider", async || {
            let pending = run.system.metric("billing", "payments_pending").await?;
            Ok((pending > f64::from(run.rate)).then(|| format!("{pending} payments wait for the provider")))
        })
        .await;
    let accepted = run.accepted_meanwhile().await;
    let restarted = run.restart(killed).await?;
    let again =
        Fact { what: "the provider was down and runs again".to_owned(), observed: restarted.was_down() };
    let summary = run.end(load).await?;
    let mut report = run.report(vec![waiting, accepted, again], summary, Refusals::BreakTheClaim).await?;
    run.refute_time_outs(&mut report).await?;
    Ok(report)
}

async fn faults(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    let provider = run.own()?.processes.url("provider")?.to_owned();
    let set = async |faults: Value| -> Result<()> {
        let answer = http::client()?.put(format!("{provider}/faults")).json(&faults).send().await?;
        ensure!(answer.status() == 200, "the provider's faults were answered with {}", answer.status());
        Ok(())
    };
    set(json!([
        { "fault": "error-after", "percent": 15 },
        { "fault": "error-before", "percent": 10 },
        { "fault": "hang-after", "percent": 5 },
        { "fault": "slow", "percent": 20, "milliseconds": 300 },
    ]))
    .await?;
    run.phase("outage", "errors before and after the charge, answers that hang, answers that are late");
    sleep(run.outage).await;
    let page = http::get(&format!("{provider}/metrics")).await?;
    let struck: f64 = crate::metrics::sum(&page, "provider_faults_struck_total")?;
    set(json!([])).await?;
    let summary = run.end(load).await?;
    let fact = Fact { what: format!("the provider failed {struck} times"), observed: struck > 20.0 };
    run.report(vec![fact], summary, Refusals::BreakTheClaim).await
}
