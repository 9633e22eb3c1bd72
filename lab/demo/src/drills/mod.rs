//! Fault drills: each breaks one thing under load, repairs it, and reconciles. Each is one file and one line in
//! [`ALL`].

mod broker_kill;
mod commit_contention;
mod database_kill;
mod drill;
mod drill_run;
mod report;
mod saga;

use anyhow::{Context as _, Result};

use crate::interrupt::interrupted;
use crate::running_system::RunningSystem;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

pub(crate) use drill::Drill;
pub(crate) use drill_run::DrillOptions;

use drill_run::DrillRun;

/// All drills, in the order in which `drill all` runs them.
pub(crate) static ALL: [Drill; 4] =
    [broker_kill::DRILL, database_kill::DRILL, saga::DRILL, commit_contention::DRILL];

/// Finds a drill by its name. The error lists the names.
pub(crate) fn find(name: &str) -> Result<&'static Drill> {
    let names: Vec<&str> = ALL.iter().map(|drill| drill.name).collect();
    let found = ALL.iter().find(|drill| drill.name == name);
    found.with_context(|| format!("unknown drill `{name}`; there are: {}, all, list", names.join(", ")))
}

/// Runs a drill on a running system: load, fault, repair, reconciliation. Whatever happens, Ctrl-C included, the faults
/// are repaired before it returns.
pub(crate) async fn run(
    drill: &Drill,
    options: DrillOptions,
    system: &RunningSystem,
    terminal: &Terminal,
) -> Result<Verdict> {
    terminal.print("");
    terminal.print(format!("Drill {}", drill.name));
    terminal.print(format!("Claim {}", drill.claim));
    if let Some(variant) = system.variant() {
        let (name, description) = (variant.name(), variant.description());
        terminal.print(format!("The variant {name} replaces the order service: {description}"));
    }
    terminal.print("");
    let run = DrillRun::new(system, terminal, options).await?;
    let ended = tokio::select! {
        report = run.with_progress((drill.run)(&run)) => Some(report),
        stop = interrupted() => stop.map(|()| None)?,
    };
    if ended.is_none() {
        terminal.print("Interrupted: repairing what was broken …");
    }
    let repaired = system.repair().await.context("failed to repair the system, it is still broken");
    match ended {
        None => repaired.map(|()| Verdict::Interrupted),
        Some(report) => {
            let report = report?;
            repaired?;
            report.print(terminal);
            terminal.document(
                &serde_json::json!({ "drill": drill.name, "claim": drill.claim, "report": report }),
            )?;
            Ok(report.verdict)
        }
    }
}
