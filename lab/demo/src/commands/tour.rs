//! `cargo demo`: the tour.

use std::time::{Duration, Instant};

use anyhow::Result;
use load_tests::Saturation;
use testbed::longer;

use super::order::{self, OrderKind};
use crate::Verdict;
use crate::choice::Choice;
use crate::drills::{self, DrillOptions};
use crate::interrupt::{interrupted, or_interrupted};
use crate::reconciliation::Wait;
use crate::running_system::RunningSystem;
use crate::terminal::Terminal;

/// The drill of the tour. Its outage is as short as its lesson allows: orders
/// are accepted, and the backlog is seen to grow.
const OPTIONS: DrillOptions =
    DrillOptions { rate: None, outage: Some(Duration::from_secs(8)), times: 1, seed: 1 };
/// The most orders per second that the drill offers, and the least: fewer would show nothing.
const MAX_RATE: u32 = 100;
const MIN_RATE: u32 = 5;

/// How many clients find out what the machine bears, and for how long they place orders.
const CLIENTS: u32 = 4;
const MEASURED_FOR: Duration = Duration::from_secs(2);
/// How long their orders may take to their ends.
const MEASURED_DEADLINE: Duration = Duration::from_secs(10);

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
    let rate = tokio::select! {
        rate = half_of_what_it_bears(system, terminal) => rate?,
        stop = interrupted() => return stop.map(|()| Verdict::Interrupted),
    };
    let options = DrillOptions { rate: Some(rate), ..OPTIONS };
    let (verdict, document) = drills::run(drills::find("broker-kill")?, options, system, terminal).await?;
    terminal.document(&document)?;
    Ok(verdict)
}

/// Measures how many orders per second go from their acceptance to their ends on this machine now, and returns half of that:
/// a drill that fills a slow machine shows its queue and not the system. The orders are in the ledger, like all others.
async fn half_of_what_it_bears(system: &RunningSystem, terminal: &Terminal) -> Result<u32> {
    let ledger = system.ledger().await?;
    let load = Saturation {
        url: system.orders_url().to_owned(),
        connections: CLIENTS,
        for_: MEASURED_FOR,
        seed: OPTIONS.seed,
    };
    let began = Instant::now();
    let placed = load_tests::saturate(load, ledger.recorder()).await?;
    // The relays and the consumers are slower than the order service alone.
    system.settle(Wait::until_decided(longer(MEASURED_DEADLINE)), &ledger).await?;
    let bears = u128::from(placed.accepted) * 1_000 / began.elapsed().as_millis().max(1);
    let rate = u32::try_from(bears / 2).unwrap_or(MAX_RATE).clamp(MIN_RATE, MAX_RATE);
    terminal.print(format!(
        "This machine completes about {bears} orders per second now. The drill places {rate} per second: half, {MAX_RATE} at most."
    ));
    Ok(rate)
}
