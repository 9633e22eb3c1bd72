//! Fault drills: each breaks one thing under load, repairs it, and reconciles. A drill is a constant with what it teaches,
//! what it claims and a function; [`ALL`] lists them.

mod broker;
mod client;
mod data;
mod database;
mod drill;
mod drill_run;
mod network;
mod on_own;
mod progress;
mod report;
mod restart;
mod sequence;
mod service;
mod time;
mod written_report;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::interrupt::interrupted;
use crate::running_system::RunningSystem;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

pub(crate) use drill::{Drill, Group, Subject};
pub(crate) use drill_run::DrillOptions;
pub(crate) use on_own::{SERVICE, own_system, run_both, run_on_own};

use drill_run::DrillRun;

/// All drills, in the order in which `drill all` runs them.
pub(crate) static ALL: [Drill; 51] = [
    broker::kill::DRILL,
    broker::freeze::DRILL,
    broker::refuse::ALARM,
    broker::refuse::PASSWORD,
    broker::refuse::STUCK_QUEUE,
    broker::refuse::UNROUTABLE,
    broker::operator::CONNECTIONS,
    broker::operator::BINDINGS,
    broker::operator::EXCHANGE,
    broker::operator::QUEUE,
    network::resets::CONFIRM_LOST,
    network::resets::ACK_LOST,
    network::silence::ONE_WAY,
    network::silence::BROKER_AWAY,
    network::slow::SLOW,
    network::slow::NARROW,
    database::kill::DRILL,
    database::freeze::DRILL,
    database::sessions::TERMINATED,
    database::sessions::COMMIT_ANSWER_LOST,
    network::silence::DATABASE_AWAY,
    database::locks::POOL_EXHAUSTED,
    database::locks::OLD_SNAPSHOT,
    database::writes::MARKS,
    database::writes::COMMITS,
    database::commit_contention::DRILL,
    service::saga::DRILL,
    service::crashes::ORDER_BEFORE_COMMIT,
    service::crashes::ORDER_AFTER_COMMIT,
    service::crashes::RELAY_AFTER_CONFIRM,
    service::crashes::RELAY_FROZEN,
    service::crashes::CONSUMER_BEFORE_COMMIT,
    service::crashes::CONSUMER_AFTER_COMMIT,
    service::crashes::BILLING_AFTER_CHARGE,
    service::stops::TERMINATE,
    service::stops::FREEZE,
    service::logs::DRILL,
    service::instances::SCALE,
    service::instances::NO_WAKE_UP,
    service::provider::AWAY,
    service::provider::FAULTS,
    client::hang_up::DRILL,
    client::same_key::DRILL,
    client::slow::DRILL,
    data::poison::DRILL,
    data::copies::REORDERED,
    data::copies::OTHER_BODY,
    data::copies::BACKLOG,
    data::replay::DRILL,
    time::clocks::DRILL,
    time::limit::DRILL,
];

/// Finds a drill by its name.
pub(crate) fn find(name: &str) -> Result<&'static Drill> {
    let found = ALL.iter().find(|drill| drill.name == name);
    found.with_context(|| format!("unknown drill `{name}`: `cargo demo drill list` prints them"))
}

/// Runs a drill on a running system: load, fault, repair, reconciliation. Whatever happens, Ctrl-C included, the faults
/// are repaired before it returns. With the verdict comes the document about it.
pub(crate) async fn run(
    drill: &Drill,
    options: DrillOptions,
    system: &RunningSystem,
    terminal: &Terminal,
) -> Result<(Verdict, Value)> {
    terminal.print("");
    terminal.print(format!("Drill {}", drill.name));
    terminal.print(format!("Claim {}", drill.claim));
    let difference = system.alteration().description();
    terminal.print(difference.unwrap_or_else(|| format!("Predict {}", drill.question)));
    terminal.print("");
    let run = DrillRun::new(system, terminal, drill, options).await?;
    let ended = tokio::select! {
        report = run.with_progress((drill.run)(&run)) => Some(report),
        stop = interrupted() => stop.map(|()| None)?,
    };
    if ended.is_none() {
        terminal.print("Interrupted: repairing what was broken …");
    }
    let repaired = system.repair().await.context("failed to repair the system, it is still broken");
    match ended {
        None => repaired.map(|()| (Verdict::Interrupted, Value::Null)),
        Some(report) => {
            let report = report?;
            repaired?;
            report.print(terminal);
            let written = written_report::write(drill, &run, &report).await?;
            terminal.print(format!("Report   {}", written.display()));
            Ok((report.verdict, json!({ "drill": drill.name, "claim": drill.claim, "report": report })))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_catalogue_in_the_docs_lists_every_drill() {
        let page = include_str!("../../../../docs/drills.md");
        let (_, catalogue) = page.split_once("## The catalogue\n").unwrap();
        let names: HashSet<_> = ALL.iter().map(|drill| drill.name).collect();
        assert_eq!(names.len(), ALL.len(), "two drills have one name");
        for Drill { name, question, teaches, .. } in &ALL {
            let row = format!("| `{name}` | {question} | {teaches} |\n");
            assert!(catalogue.contains(&row), "missing: {row}");
        }
        let rows = catalogue.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(rows, ALL.len(), "the catalogue lists drills that do not exist");
    }
}
