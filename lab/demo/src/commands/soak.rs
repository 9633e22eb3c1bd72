//! `cargo demo soak`: kills random processes and servers for as long as you like, and reconciles.

use anyhow::Result;

use crate::choice::Choice;
use crate::lab::Soak;
use crate::reconciliation::DuplicatesDropped;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// How many messages out of order are printed.
const PRINTED_GAPS: usize = 5;

/// Starts nine processes for it, with a database server and a broker of their own.
pub(crate) async fn run(choice: Choice, soak: Soak, terminal: &Terminal) -> Result<Verdict> {
    let seed = soak.seed;
    terminal.print(
        "Claim  With four order services, two of each consumer, PostgreSQL and RabbitMQ killed at random, no",
    );
    terminal.print(
        "       event of an order is published or applied out of order, nothing is lost, and no effect",
    );
    terminal
        .print("       happens twice; also of the orders that inventory and billing cannot apply before a");
    terminal.print("       defect is repaired.");
    terminal.print("Starting PostgreSQL, RabbitMQ and nine processes …");
    choice.for_servers(terminal).await?.decide();
    testbed::build_services(!terminal.json()).await?;
    let result = soak.run(|line| terminal.print(line)).await?;
    terminal.print_all(result.reconciliation.table(DuplicatesDropped::default()));
    let published = &result.published;
    terminal.print("");
    terminal.print(format!(
        "  {} killed; {} messages published, {} of them copies; {} published out of order; {} cancelled",
        result.kills,
        published.messages,
        published.copies,
        published.out_of_order.len(),
        result.cancelled,
    ));
    terminal.print(format!(
        "  {} events were set aside until the repair; {} of them were applied by the replay",
        result.dead_letters, result.replayed
    ));
    for gap in published.out_of_order.iter().take(PRINTED_GAPS) {
        terminal.print(format!("  OUT OF ORDER {gap}"));
    }
    // The reconciliation compares acknowledged orders, and reads cancellations from the tables only.
    let lost = result.cancelled.saturating_sub(result.reconciliation.cancelled);
    if lost > 0 {
        terminal.print(format!("  LOST {lost} cancellations that were acknowledged"));
    }
    let waiting = result.reconciliation.waiting_for_operator();
    if waiting > 0 {
        terminal.print(format!("  NOT APPLIED {waiting} events, although the defect was repaired"));
    }
    let broken = !result.reconciliation.findings.is_empty()
        || !published.out_of_order.is_empty()
        || lost > 0
        || waiting > 0;
    let proven = published.copies > 0
        && result.kills > 0
        && result.reconciliation.cancelled > 0
        && result.replayed > 0;
    let (verdict, reason) = match (broken, proven) {
        (true, _) => (Verdict::Broken, "the findings are above"),
        (false, true) => (Verdict::Held, "nothing lost, nothing doubled, nothing out of order"),
        (false, false) => {
            (Verdict::Inconclusive, "no event was published twice, or none was set aside: nothing is proven")
        }
    };
    terminal.print_verdict(verdict, &format!("{reason} (seed {seed})"));
    terminal.document(&serde_json::json!({
        "verdict": verdict, "reason": reason, "seed": seed, "kills": result.kills,
        "deadLetters": result.dead_letters, "replayed": result.replayed, "messages": published.messages,
        "copies": published.copies, "outOfOrder": published.out_of_order, "reconciliation": result.reconciliation,
    }))?;
    Ok(verdict)
}
