//! `cargo demo load`: orders at a constant rate, whatever happens to the earlier ones.

use std::time::Duration;

use anyhow::Result;
use load_tests::Load;
use tokio::time::interval;

use crate::Verdict;
use crate::choice::Choice;
use crate::running_system::RunningSystem;
use crate::terminal::Terminal;

/// Loads the running system. Every acknowledgement is written to the ledger, which `verify` compares with the records.
pub(crate) async fn run(choice: Choice, rate: u32, for_: Duration, terminal: &Terminal) -> Result<Verdict> {
    let system = RunningSystem::require(choice).await?;
    let ledger = system.ledger().await?;
    let load = load_tests::run(Load::new(system.orders_url(), rate, for_), ledger.recorder());
    let mut load = std::pin::pin!(load);
    let mut interval = interval(Duration::from_secs(1));
    let summary = loop {
        tokio::select! {
            summary = &mut load => break summary?,
            _ = interval.tick() => terminal.progress(format!("  accepted {}", ledger.recorded())),
        }
    };
    ledger.acknowledged()?;
    terminal.print_all(summary.to_string().lines());
    terminal.document(&summary)?;
    // Refused orders break no promise. If no order was accepted, the environment has failed.
    Ok(if summary.accepted > 0 { Verdict::Held } else { Verdict::Inconclusive })
}
