//! `cargo demo verify`: the conservation sum of the running system.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep};

use crate::audit::Audit;
use crate::choice::Choice;
use crate::ledger;
use crate::shop::Shop;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// Waits up to `wait` for what is on its way, then draws the sum.
pub(crate) async fn run(choice: Choice, wait: Duration, terminal: &Terminal) -> Result<Verdict> {
    let shop = Shop::find(choice.wanted()).await?.context(super::up::NOTHING_RUNS)?;
    let acknowledged = ledger::read(&shop.ledger_path().await?)?;
    let deadline = Instant::now() + wait;
    let audit = loop {
        let audit = shop.audit(&acknowledged).await?;
        if audit.at_rest() || audit.beyond_hope() || Instant::now() >= deadline {
            break audit;
        }
        let Audit { owed, payments_owed, open, .. } = &audit;
        terminal.progress(format!(
            "  waiting: {owed} events still to be published, {payments_owed} payments owed, {open} orders open"
        ));
        sleep(Duration::from_millis(500)).await;
    };
    let dropped = shop.duplicates_dropped().await;
    for line in audit.table(dropped) {
        terminal.say(line);
    }
    let (verdict, reason) = judge(&audit);
    terminal.say("");
    terminal.say(format!("VERDICT  {}: {reason}", verdict.word()));
    terminal.document(&serde_json::json!({
        "verdict": verdict, "reason": reason, "audit": audit, "duplicatesDropped": dropped,
    }))?;
    Ok(verdict)
}

fn judge(audit: &Audit) -> (Verdict, String) {
    if !audit.findings.is_empty() {
        return (Verdict::Broken, "the sum does not hold; the ids are above".to_owned());
    }
    let aside = audit.set_aside(false);
    if audit.under_way() + aside > 0 {
        let Audit { owed, payments_owed, open, .. } = audit;
        let waiting = format!(
            "{owed} events still to be published, {payments_owed} payments owed, {open} orders open, {aside} set aside \
             (`cargo demo aside list` shows them)"
        );
        return (
            Verdict::Inconclusive,
            format!("nothing is lost, but not everything has arrived: {waiting}"),
        );
    }
    if audit.orders == 0 {
        return (Verdict::Inconclusive, "there are no orders yet: `cargo demo order` places one".to_owned());
    }
    let given_up = match audit.set_aside(true) {
        0 => String::new(),
        discarded => format!("; {discarded} discarded by an operator"),
    };
    let Audit { orders, confirmed, cancelled, .. } = audit;
    let held = format!(
        "{orders} orders, none lost, none doubled, no effect without its order; {confirmed} confirmed, {cancelled} \
         cancelled, and money and stock agree{given_up}"
    );
    (Verdict::Held, held)
}
