//! Services whose clocks are wrong by an hour, in both directions.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::own_system::OwnSystem;

pub(in crate::drills) const DRILL: Drill = Drill {
    name: "clocks-wrong",
    group: Group::Time,
    teaches: "Decisions about time are made by one clock, the database's. The others only write logs.",
    question: "Inventory's clock is an hour ahead, billing's an hour behind. Which orders time out, which retries are late?",
    claim: "With clocks that are wrong by an hour, orders end as usual, in order, and nothing times out.",
    outage: Duration::from_secs(10),
    system: Subject::Own(|| OwnSystem {
        clocks: &[("inventory", "+1h"), ("billing", "-1h")],
        ..OwnSystem::default()
    }),
    run: |run| Box::pin(wrong_clocks(run)),
};

async fn wrong_clocks(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    let accepted = run.accepted_meanwhile().await;
    let mut facts = vec![accepted];
    for service in ["inventory", "billing"] {
        let log = run.own()?.processes.log(service)?;
        let line: Value = serde_json::from_str(log.lines().next_back().context("an empty log")?)?;
        let time = line["timestamp"].as_str().context("a line without a time")?;
        let error =
            format!("select round(extract(epoch from timestamptz '{time}' - clock_timestamp()))::text");
        let error: i64 = run.system.read(&error).await?.trim().parse()?;
        facts.push(Fact {
            what: format!("the last line of {service}'s log is dated {error} s from now"),
            observed: error.abs() > 1_800,
        });
    }
    let summary = run.end(load).await?;
    let mut report = run.report(facts, summary, Refusals::BreakTheClaim).await?;
    run.refute_time_outs(&mut report).await?;
    Ok(report)
}
