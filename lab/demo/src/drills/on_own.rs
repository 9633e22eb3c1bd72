//! Drills on systems that are started for them.

use anyhow::Result;
use flaws::Flaw;
use serde_json::Value;

use super::drill::{Drill, Subject};
use super::drill_run::DrillOptions;
use super::written_report::folder;
use crate::alteration::Alteration;
use crate::choice::Choice;
use crate::own_system::OwnSystem;
use crate::running_system::RunningSystem;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

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

/// What a twin is compared with.
pub(crate) const SERVICE: &str = "order service";

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
    terminal.print(format!("The drill {} has a system of its own.", drill.name));
    let logs = folder(drill, &own.alteration).join("logs");
    let Some(system) = RunningSystem::start_own(choice, own, logs, terminal).await? else {
        return Ok((Verdict::Interrupted, Value::Null));
    };
    let ended = super::run(drill, options, &system, terminal).await;
    let stopped = system.stop(terminal).await;
    let ended = ended?;
    stopped?;
    Ok(ended)
}
