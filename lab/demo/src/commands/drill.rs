//! `cargo demo drill NAME`: one fault and a verdict. `list` prints the drills, `all` runs them one after the other.

use anyhow::{Result, bail};

use crate::choice::Choice;
use crate::drills::{self, Drill, DrillOptions};
use crate::running_system::RunningSystem;
use crate::terminal::Terminal;
use crate::variant::Variant;
use crate::verdict::Verdict;

/// Runs on the system that is running. If there is none, or with a variant, it starts a system for the drill.
pub(crate) async fn run(
    choice: Choice,
    name: &str,
    options: DrillOptions,
    variant: Option<Variant>,
    terminal: &Terminal,
) -> Result<Verdict> {
    let chosen: Vec<&Drill> = match name {
        "list" => {
            for drill in &drills::ALL {
                terminal.print(format!("{:<18}  {}", drill.name, drill.claim));
            }
            let list: Vec<_> = drills::ALL.iter().map(|drill| (drill.name, drill.claim)).collect();
            terminal.document(&list)?;
            return Ok(Verdict::Held);
        }
        // The drills would share one database: each would find again what an earlier one has broken.
        "all" if variant.is_some() => bail!("a variant runs one drill at a time"),
        "all" => drills::ALL.iter().collect(),
        name => vec![drills::find(name)?],
    };
    let system = match variant {
        Some(variant) => RunningSystem::start_variant(choice, variant, terminal).await?,
        None => RunningSystem::find_or_start(choice, terminal).await?,
    };
    let Some(system) = system else {
        return Ok(Verdict::Interrupted);
    };
    let verdict = run_each(&chosen, options, &system, terminal).await;
    let stopped = system.stop(terminal).await;
    let verdict = verdict?;
    stopped?;
    Ok(verdict)
}

async fn run_each(
    chosen: &[&Drill],
    options: DrillOptions,
    system: &RunningSystem,
    terminal: &Terminal,
) -> Result<Verdict> {
    let mut worst = Verdict::Held;
    for drill in chosen {
        worst = worst.worse(drills::run(drill, options, system, terminal).await?);
        if worst == Verdict::Interrupted {
            break;
        }
    }
    Ok(worst)
}
