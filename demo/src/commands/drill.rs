//! `cargo demo drill NAME`: one fault, a verdict. `list` names them, `all` runs them one after the other.

use anyhow::{Result, bail};

use crate::choice::Choice;
use crate::drills::{self, Drill, Options};
use crate::shop::Shop;
use crate::terminal::Terminal;
use crate::variant::Variant;
use crate::verdict::Verdict;

/// Runs on the system that is running; if there is none, or with a variant, on one of its own.
pub(crate) async fn run(
    choice: Choice,
    name: &str,
    options: Options,
    variant: Option<Variant>,
    terminal: &Terminal,
) -> Result<Verdict> {
    let chosen: Vec<&Drill> = match name {
        "list" => {
            for drill in &drills::ALL {
                terminal.say(format!("{:<16}{}", drill.name, drill.claim));
            }
            let list: Vec<_> = drills::ALL.iter().map(|drill| (drill.name, drill.claim)).collect();
            terminal.document(&list)?;
            return Ok(Verdict::Held);
        }
        // The books are one: what the first drill breaks would be found by each that follows.
        "all" if variant.is_some() => bail!("with a variant, one drill at a time"),
        "all" => drills::ALL.iter().collect(),
        name => vec![drills::find(name)?],
    };
    let shop = match variant {
        Some(variant) => Shop::start_variant(choice, variant, terminal).await?,
        None => Shop::find_or_start(choice, terminal).await?,
    };
    let Some(shop) = shop else {
        return Ok(Verdict::Interrupted);
    };
    let verdict = run_each(&chosen, options, &shop, terminal).await;
    let stopped = shop.stop(terminal).await;
    let verdict = verdict?;
    stopped?;
    Ok(verdict)
}

async fn run_each(chosen: &[&Drill], options: Options, shop: &Shop, terminal: &Terminal) -> Result<Verdict> {
    let mut worst = Verdict::Held;
    for drill in chosen {
        worst = worst.and(drills::run(drill, options, shop, terminal).await?);
        if worst == Verdict::Interrupted {
            break;
        }
    }
    Ok(worst)
}
