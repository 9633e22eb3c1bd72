//! `cargo demo reset`: back to the seeds.

use std::time::Duration;

use anyhow::{Context as _, Result};
use testbed::eventually;

use crate::choice::Choice;
use crate::seeds::BACK_TO_SEEDS;
use crate::shop::Shop;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// An event that is still on its way would find its order gone and leave an effect without a cause.
const DRAINED_WITHIN: Duration = Duration::from_secs(30);

/// Waits until nothing is on its way, then empties every table but the seeds, and forgets the acknowledgements.
pub(crate) async fn run(choice: Choice, terminal: &Terminal) -> Result<Verdict> {
    let shop = Shop::find(choice.wanted()).await?.context(super::up::NOTHING_RUNS)?;
    terminal.say("Waiting until nothing is on its way …");
    eventually("everything to be applied", DRAINED_WITHIN, async || {
        Ok(shop.audit(&[]).await?.at_rest().then_some(()))
    })
    .await
    .context(
        "`cargo demo verify` says what is missing; `cargo demo down` erases everything, however it stands",
    )?;
    let ledger = shop.ledger_path().await?;
    shop.administer(BACK_TO_SEEDS).await?;
    if ledger.exists() {
        std::fs::remove_file(ledger)?;
    }
    terminal.say("Back to the seeds.");
    Ok(Verdict::Held)
}
