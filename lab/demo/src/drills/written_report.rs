//! The report that a drill leaves: Markdown for people, with the sequence of one order, and JSON for programs.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::drill::Drill;
use super::drill_run::DrillRun;
use super::report::Report;
use super::sequence;
use crate::alteration::Alteration;
use crate::paths;

/// Where a drill's report is, and the logs of its own system: the drill's name, and what differs in the system.
pub(crate) fn folder(drill: &Drill, alteration: &Alteration) -> PathBuf {
    let difference = alteration.name().map_or(String::new(), |name| format!("-{name}"));
    paths::home().join("drills").join(format!("{}{difference}", drill.name))
}

/// Writes `report.md` and `report.json`. Returns the path of the first.
pub(super) async fn write(drill: &Drill, run: &DrillRun<'_>, report: &Report) -> Result<PathBuf> {
    // A system that lost its records has no order to show, and a report all the same.
    let sequence = sequence::slowest_order(run).await.unwrap_or_else(|error| Some(format!("{error:#}\n")));
    let folder = folder(drill, run.system.alteration());
    std::fs::create_dir_all(&folder).with_context(|| format!("failed to create {}", folder.display()))?;
    let path = folder.join("report.md");
    std::fs::write(&path, markdown(drill, run, report, sequence.as_deref())?)
        .with_context(|| format!("failed to write {}", path.display()))?;
    let document = json!({
        "drill": drill.name, "group": drill.group.to_string(), "claim": drill.claim, "rate": run.rate,
        "outageSeconds": run.outage.as_secs_f64(),
        "startedAt": humantime::format_rfc3339_millis(run.started_at).to_string(), "report": report,
    });
    std::fs::write(folder.join("report.json"), serde_json::to_vec_pretty(&document)?)?;
    Ok(path)
}

fn markdown(drill: &Drill, run: &DrillRun<'_>, report: &Report, sequence: Option<&str>) -> Result<String> {
    let mut text = String::new();
    writeln!(text, "# Drill {}: {}\n", drill.name, report.verdict.word())?;
    writeln!(text, "{}\n", report.reason)?;
    writeln!(text, "- **Question**: {}", drill.question)?;
    writeln!(text, "- **Expected**: {}", drill.claim)?;
    writeln!(text, "- **What it teaches**: {}", drill.teaches)?;
    writeln!(text, "- **Command**: `cargo demo drill {} {}`", drill.name, run.options())?;
    writeln!(
        text,
        "- **Began**: {}, the 0.0 s of what follows\n",
        humantime::format_rfc3339_millis(run.started_at)
    )?;
    writeln!(text, "## What was observed\n")?;
    for line in report.observations() {
        writeln!(text, "- {line}")?;
    }
    writeln!(text)?;
    writeln!(text, "```text\n{}\n```\n", run.lines().join("\n"))?;
    writeln!(text, "## Reconciliation\n")?;
    writeln!(text, "```text\n{}\n```", report.reconciliation.table(report.duplicates_dropped).join("\n"))?;
    if let Some(sequence) = sequence {
        writeln!(text, "\n## The order that took longest\n\n{sequence}")?;
    }
    Ok(text)
}
