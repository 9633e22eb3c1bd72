//! `cargo demo verify`: reconciles the running system.

use std::time::Duration;

use anyhow::Result;
use uuid::Uuid;

use crate::Verdict;
use crate::choice::Choice;
use crate::ledger;
use crate::reconciliation::{Reconciliation, Settled, Wait, settle};
use crate::running_system::RunningSystem;
use crate::terminal::Terminal;

/// Waits up to `wait` until nothing is pending, and reconciles. `orders` were acknowledged to another client than
/// `cargo demo`: they are looked for like the ledger's.
pub(crate) async fn run(
    choice: Choice,
    wait: Duration,
    orders: &[Uuid],
    terminal: &Terminal,
) -> Result<Verdict> {
    let system = RunningSystem::require(choice).await?;
    let mut acknowledged = ledger::read(&system.ledger_path().await?)?;
    acknowledged.extend(orders);
    let read = async || {
        let reconciliation = system.reconcile(&acknowledged).await?;
        if reconciliation.in_progress() > 0 {
            terminal.progress(format!("  waiting: {}", reconciliation.progress()));
        }
        Ok(reconciliation)
    };
    let settled = settle(Wait::until_decided(wait), read, async || system.transit().await).await?;
    let reconciliation = &settled.reconciliation;
    let dropped = system.duplicates_dropped().await;
    terminal.print_all(reconciliation.table(dropped));
    let (verdict, reason) = judge(&settled);
    terminal.print_verdict(verdict, &reason);
    terminal.document(&serde_json::json!({
        "verdict": verdict, "reason": reason, "reconciliation": reconciliation, "duplicatesDropped": dropped,
    }))?;
    Ok(verdict)
}

fn judge(settled: &Settled) -> (Verdict, String) {
    if let Some(broken) = settled.broken() {
        return (Verdict::Broken, broken);
    }
    let reconciliation = &settled.reconciliation;
    let waiting = reconciliation.waiting_for_operator();
    if settled.undecided().is_some() || reconciliation.in_progress() + waiting > 0 {
        let progress = reconciliation.progress();
        let why = settled.undecided().unwrap_or(&progress);
        let reason = format!(
            "nothing is lost, but not everything has been applied: {why}, {waiting} set aside (`cargo demo failed \
             list` shows them)"
        );
        return (Verdict::Inconclusive, reason);
    }
    if reconciliation.orders == 0 {
        return (Verdict::Inconclusive, "there are no orders yet: `cargo demo order` places one".to_owned());
    }
    let discarded = match reconciliation.discarded() {
        0 => String::new(),
        discarded => format!("; {discarded} discarded by an operator"),
    };
    let Reconciliation { orders, confirmed, cancelled, .. } = reconciliation;
    let held = format!(
        "{orders} orders, none lost, none doubled, no effect without its order; {confirmed} confirmed, {cancelled} \
         cancelled, and money and stock agree{discarded}"
    );
    (Verdict::Held, held)
}
