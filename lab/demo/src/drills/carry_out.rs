//! How a drill is carried out: load, faults, repair, reconciliation, verdict.

use std::time::SystemTime;

use anyhow::{Context as _, Result};
use flaws::Flaw;
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use super::drill::{Drill, Subject};
use super::drill_run::{DrillOptions, DrillRun};
use super::report::{Refusals, Report};
use super::written_report;
use crate::Verdict;
use crate::alteration::Alteration;
use crate::choice::Choice;
use crate::interrupt::interrupted;
use crate::own_system::OwnSystem;
use crate::running_system::RunningSystem;
use crate::terminal::Terminal;

/// Runs a drill on a running system. Whatever happens, Ctrl-C included, the faults are repaired before it returns. With the
/// verdict comes the document about it.
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
    let run = DrillRun::new(system, terminal, drill.outage, drill.cancels, options).await?;
    let ended = tokio::select! {
        report = run.with_progress(carry_out(drill, &run)) => Some(report),
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
            let is_as_it_should = report.breaks_only(drill.breaks);
            Ok((
                report.verdict,
                json!({ "drill": drill.name, "claim": drill.claim, "report": report, "asItShould": is_as_it_should }),
            ))
        }
    }
}

async fn carry_out(drill: &Drill, run: &DrillRun<'_>) -> Result<Report> {
    run.steady().await?;
    match drill.steps {
        Some(steps) => steps(run).await?,
        None => {
            for _ in 0..drill.times {
                break_and_repair(drill, run).await?;
            }
        }
    }
    if drill.breaks.is_empty() {
        run.end_with_progress().await?;
    } else {
        run.end().await?;
    }
    let ended = run.settle(drill.breaks).await?;
    for check in drill.at_end {
        check(run, &ended);
    }
    Ok(run.report(ended, drill.refusals))
}

async fn break_and_repair(drill: &Drill, run: &DrillRun<'_>) -> Result<()> {
    let (mut before, mut injected) = (vec![], vec![]);
    for felt in drill.felt {
        before.push(felt.before(run).await?);
    }
    for fault in drill.faults {
        injected.push(run.inject(fault).await?);
    }
    let signs = drill.felt.iter().zip(before);
    let (at_the_end, meanwhile): (Vec<_>, Vec<_>) = signs.partition(|(felt, _)| felt.is_at_the_end());
    let felt = try_join_all(meanwhile.into_iter().map(|(felt, before)| felt.observe(run, before)));
    let sessions = async {
        for injected in &injected {
            injected.hold(run.system, run.outage).await?;
        }
        anyhow::Ok(())
    };
    tokio::try_join!(sessions, felt)?;
    for (felt, before) in at_the_end {
        felt.observe(run, before).await?;
    }
    for injected in injected.into_iter().rev() {
        run.repair(injected).await?;
    }
    if drill.refusals == Refusals::AreExpected {
        run.accepted_again(SystemTime::now()).await;
    }
    Ok(())
}

/// What a twin is compared with.
pub(crate) const SERVICE: &str = "order service";

/// Runs a drill on a system with the order service and on one with a variant. With each verdict comes the document about it.
pub(crate) async fn run_both(
    choice: Choice,
    drill: &Drill,
    options: DrillOptions,
    twin: Flaw,
    terminal: &Terminal,
) -> Result<[(Verdict, Value); 2]> {
    let width = twin.name().len().max(SERVICE.len());
    let run_one = async |name: &str, alteration| {
        let own = own_system(drill).altered(&alteration);
        run_on_own(choice, drill, own, options, &terminal.labelled(&format!("{name:<width$}"))).await
    };
    let (service, variant) =
        tokio::try_join!(run_one(SERVICE, Alteration::None), run_one(twin.name(), Alteration::Flaw(twin)))?;
    Ok([service, variant])
}

/// The system that a drill needs, where the running one cannot be used.
pub(crate) fn own_system(drill: &Drill) -> OwnSystem {
    match drill.system {
        Subject::Own(own) => own(),
        Subject::Running | Subject::Proxied => OwnSystem::default(),
    }
}

/// Starts a system for a drill, runs it there, and stops the system.
pub(crate) async fn run_on_own(
    choice: Choice,
    drill: &Drill,
    own: OwnSystem,
    options: DrillOptions,
    terminal: &Terminal,
) -> Result<(Verdict, Value)> {
    if !own.clocks.is_empty() {
        choice.prepare_faketime(terminal).await?;
    }
    terminal.print("");
    terminal.print(format!("The drill {} runs on a separate system.", drill.name));
    let logs = written_report::folder(drill, &own.alteration).join("logs");
    let work = async |system: &RunningSystem| run(drill, options, system, terminal).await;
    let ended = RunningSystem::with_own(choice, own, logs, terminal, work).await?;
    Ok(ended.unwrap_or((Verdict::Interrupted, Value::Null)))
}
