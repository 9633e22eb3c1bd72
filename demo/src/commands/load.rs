//! `cargo demo load`: orders at a constant rate, whatever becomes of the earlier ones.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use load_tests::{Answer, Load};
use tokio::time::interval;

use crate::choice::Choice;
use crate::ledger::Ledger;
use crate::shop::Shop;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// On the running system; every acknowledgement goes into the ledger, so that `verify` can hold the shop to it.
pub(crate) async fn run(choice: Choice, rate: u32, for_: Duration, terminal: &Terminal) -> Result<Verdict> {
    let shop = Shop::find(choice.wanted()).await?.context(super::up::NOTHING_RUNS)?;
    let ledger = Arc::new(Ledger::open(&shop.ledger_path().await?)?);
    let noted = ledger.clone();
    let load = load_tests::run(Load::new(shop.orders_url(), rate, for_), move |outcome| {
        if let Answer::Accepted(id) = outcome.answer {
            noted.note(id, outcome.finished);
        }
    });
    let mut load = std::pin::pin!(load);
    let mut every = interval(Duration::from_secs(1));
    let summary = loop {
        tokio::select! {
            summary = &mut load => break summary?,
            _ = every.tick() => terminal.progress(format!("  accepted {}", ledger.noted())),
        }
    };
    ledger.acknowledged()?;
    for line in summary.to_string().lines() {
        terminal.say(line);
    }
    terminal.document(&summary)?;
    // Refused orders break no promise; a load that reached nobody is a failed environment.
    Ok(if summary.accepted > 0 { Verdict::Held } else { Verdict::Inconclusive })
}
