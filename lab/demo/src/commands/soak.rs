//! `cargo demo soak`: random faults for as long as you like, and the reconciliation.

use anyhow::Result;

use crate::Verdict;
use crate::choice::Choice;
use crate::reconciliation::DuplicatesDropped;
use crate::soak::{Reached, Soak};
use crate::terminal::Terminal;

/// How many messages out of order are printed.
const PRINTED_GAPS: usize = 5;

/// Starts nine processes for it, with a database server, a broker and proxies of their own.
pub(crate) async fn run(choice: Choice, soak: Soak, terminal: &Terminal) -> Result<Verdict> {
    for line in [
        "Claim  With four order services and two of each consumer, whatever is killed, frozen or cut off at random, no",
        "       event of an order is published or applied out of order, nothing is lost, and no effect happens twice;",
        "       also of the orders that inventory and billing cannot apply before a defect is repaired. When the",
        "       faults end, everything comes to rest by itself.",
    ] {
        terminal.print(line);
    }
    let Some(result) = soak.run(choice, terminal).await? else {
        return Ok(Verdict::Interrupted);
    };
    terminal.print("");
    for (fault, count) in &result.faults {
        terminal.print(format!("  {count:>6}  {fault}"));
    }
    terminal.print(format!("  {:>6}  faults of {} kinds", result.fault_count(), result.faults.len()));
    terminal.print("");
    terminal.print_all(result.reconciliation.table(DuplicatesDropped::default()));
    let published = &result.published;
    terminal.print("");
    terminal.print(format!(
        "  {} messages published, {} of them copies and {} more of the soak's own; {} out of order",
        published.messages,
        result.copies(),
        result.republished,
        published.out_of_order.len(),
    ));
    terminal.print(format!(
        "  {} events were set aside until the repair; {} of them were applied by the replay, and {} bad messages \
         discarded",
        result.dead_letters, result.replayed, result.discarded
    ));
    if result.given_up + result.overtaken > 0 {
        terminal.print(format!(
            "  {} of them were set aside at a limit; {} cancellations were applied before their creations",
            result.given_up, result.overtaken
        ));
    }
    for gap in published.out_of_order.iter().take(PRINTED_GAPS) {
        terminal.print(format!("  OUT OF ORDER {gap}"));
    }
    terminal.print("");
    for Reached { state, times, .. } in &result.reached {
        terminal.print(format!("  {times:>6}  {state}"));
    }
    terminal.print("");
    for (name, value, meaning) in result.figures() {
        terminal.print(format!("  {name:<13} {value:>7}  {meaning}"));
    }
    let (verdict, reason) = result.judge();
    terminal.print_verdict(verdict, &format!("{reason} (seed {})", soak.seed));
    terminal.document(&serde_json::json!({
        "verdict": verdict, "reason": reason, "seed": soak.seed, "result": result.document(),
    }))?;
    Ok(verdict)
}
