//! Fault drills: break one thing under load, mend it, and count. Each is one file, and one line in [`ALL`].

mod broker_kill;
mod crowd;
mod database_kill;
mod report;
mod saga;
mod stage;

use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context as _, Result};

pub(crate) use report::Report;
use stage::Stage;

use crate::interrupt::interrupted;
use crate::shop::Shop;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// One drill.
pub(crate) struct Drill {
    pub(crate) name: &'static str,
    /// What is claimed: it is what the verdict is about.
    pub(crate) claim: &'static str,
    run: for<'a> fn(&'a Stage<'a>) -> Running<'a>,
}

/// A drill at work. Boxed, because each drill's future is of a type of its own.
type Running<'a> = Pin<Box<dyn Future<Output = Result<Report>> + 'a>>;

/// Every drill, in the order in which `drill all` runs them.
pub(crate) static ALL: [Drill; 4] = [broker_kill::DRILL, database_kill::DRILL, saga::DRILL, crowd::DRILL];

/// What can be chosen for a drill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Orders per second.
    pub(crate) rate: u32,
    /// How long the fault lasts.
    pub(crate) outage: Duration,
}

/// The drill of that name; the error lists those that exist.
pub(crate) fn find(name: &str) -> Result<&'static Drill> {
    let names: Vec<&str> = ALL.iter().map(|drill| drill.name).collect();
    let found = ALL.iter().find(|drill| drill.name == name);
    found.with_context(|| format!("there is no drill `{name}`; there are: {}, all, list", names.join(", ")))
}

/// Runs a drill on a running system: load, fault, mending, counting. Whatever happens, what was broken is mended
/// before this returns, on Ctrl-C too.
pub(crate) async fn run(
    drill: &Drill,
    options: Options,
    shop: &Shop,
    terminal: &Terminal,
) -> Result<Verdict> {
    terminal.say("");
    terminal.say(format!("Drill {}", drill.name));
    terminal.say(format!("Claim {}", drill.claim));
    if let Some(variant) = shop.variant() {
        terminal.say(format!(
            "NOT the order service, but its variant {}: {}",
            variant.name(),
            variant.what()
        ));
    }
    terminal.say("");
    let stage = Stage::new(shop, terminal, options).await?;
    let ended = tokio::select! {
        report = stage.with_progress((drill.run)(&stage)) => Some(report),
        stop = interrupted() => stop.map(|()| None)?,
    };
    if ended.is_none() {
        terminal.say("Interrupted: mending what was broken …");
    }
    let mended = shop.heal().await.context("MENDING FAILED, the system is still broken");
    match ended {
        None => mended.map(|()| Verdict::Interrupted),
        Some(report) => {
            let report = report?;
            mended?;
            report.show(drill, terminal)?;
            Ok(report.verdict)
        }
    }
}
