//! `cargo demo reset`: empties every table except the seed data.

use std::time::Duration;

use anyhow::{Context as _, Result};
use testbed::eventually;

use crate::Verdict;
use crate::choice::Choice;
use crate::running_system::RunningSystem;
use crate::seeds::RESET_TO_SEEDS;
use crate::state::LOGINS;
use crate::terminal::Terminal;

/// How long pending events may take to be applied. An event that is applied after the reset would have an effect
/// without an order.
const DRAIN_DEADLINE: Duration = Duration::from_secs(30);

/// Waits until nothing is pending, then resets the tables and deletes the ledger. Findings do not matter: they are
/// erased.
pub(crate) async fn run(choice: Choice, terminal: &Terminal) -> Result<Verdict> {
    let system = RunningSystem::require(choice).await?;
    terminal.print("Waiting until nothing is pending …");
    eventually("everything to be applied", DRAIN_DEADLINE, async || {
        Ok(system.reconcile(&[]).await?.is_quiescent().then_some(()))
    })
    .await
    .context("`cargo demo verify` shows what is missing; `cargo demo down` erases everything in any case")?;
    let ledger = system.ledger_path().await?;
    for login in LOGINS {
        system.execute_as(login, RESET_TO_SEEDS).await?;
    }
    if ledger.exists() {
        std::fs::remove_file(ledger)?;
    }
    terminal.print("The tables hold the seed data only.");
    Ok(Verdict::Held)
}
