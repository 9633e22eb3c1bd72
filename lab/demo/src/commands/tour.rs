//! `cargo demo`: the tour.

use std::time::Duration;

use anyhow::Result;

use super::order::{self, OrderKind};
use crate::Verdict;
use crate::choice::Choice;
use crate::drills::{self, DrillOptions};
use crate::interrupt::or_interrupted;
use crate::running_system::RunningSystem;
use crate::terminal::Terminal;

/// The drill of the tour. Its outage is as short as its lesson allows: orders are accepted, and the backlog is seen to grow.
const OPTIONS: DrillOptions =
    DrillOptions { rate: 100, outage: Some(Duration::from_secs(8)), times: 1, seed: 1 };

/// Starts the system, follows two orders, kills the broker under load, reconciles, and stops the system.
pub(crate) async fn run(choice: Choice, terminal: &Terminal) -> Result<Verdict> {
    terminal.print(
        "The transactional outbox: clients place orders over HTTP, and RabbitMQ delivers the events to inventory and \
         billing.",
    );
    terminal.print(
        "This starts the system, places orders, kills the broker under load, and reconciles the records.",
    );
    terminal.print("");
    let Some(system) = RunningSystem::find_or_start(choice, terminal).await? else {
        return Ok(Verdict::Interrupted);
    };
    let verdict = show(&system, terminal).await;
    let stopped = system.stop(terminal).await;
    let verdict = verdict?;
    stopped?;
    if verdict == Verdict::Held {
        terminal.print(
            "Next: `cargo demo up` keeps the system running, `cargo demo drill list` prints the drills.",
        );
    }
    // Repeated as the last line, because other lines follow the drill's own verdict.
    terminal.print(format!("VERDICT  {}", verdict.word()));
    Ok(verdict)
}

async fn show(system: &RunningSystem, terminal: &Terminal) -> Result<Verdict> {
    terminal.print("");
    for (title, kind) in [
        ("One order, from its acknowledgement to its end:", OrderKind::Good),
        ("One of a customer who cannot pay. Inventory releases what it has reserved:", OrderKind::Declined),
    ] {
        terminal.print(title);
        let followed = or_interrupted(order::follow(system, kind, terminal, false)).await?;
        if followed != Verdict::Held {
            return Ok(followed);
        }
    }
    let (verdict, document) = drills::run(drills::find("broker-kill")?, OPTIONS, system, terminal).await?;
    terminal.document(&document)?;
    Ok(verdict)
}
