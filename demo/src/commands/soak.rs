//! `cargo demo soak`: everything is killed at random, for as long as you like, and then counted.

use std::time::Duration;

use anyhow::Result;

use crate::audit::Dropped;
use crate::choice::Choice;
use crate::lab::Soak;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// On a system of its own: nine processes, a database and a virtual host.
pub(crate) async fn run(
    choice: Choice,
    for_: Duration,
    rate: u32,
    seed: u64,
    terminal: &Terminal,
) -> Result<Verdict> {
    terminal.say(
        "Claim  With four order services and two of each consumer, killed at random, no event of an order is",
    );
    terminal.say("       published or applied out of order, nothing is lost, and no effect happens twice.");
    terminal.say("Starting PostgreSQL, RabbitMQ and nine processes …");
    choice.of_servers(terminal).await?.decide();
    testbed::build_services(!terminal.json()).await?;
    let soaked = Soak { for_, rate, seed }.run(|line| terminal.say(line)).await?;
    for line in soaked.audit.table(Dropped::default()) {
        terminal.say(line);
    }
    let published = &soaked.published;
    terminal.say("");
    terminal.say(format!(
        "  {} processes killed; {} messages published, {} of them copies; {} published out of order; {} cancelled",
        soaked.kills,
        published.messages,
        published.copies,
        published.out_of_order.len(),
        soaked.cancelled,
    ));
    for gap in published.out_of_order.iter().take(5) {
        terminal.say(format!("  OUT OF ORDER {gap}"));
    }
    // The count at the end knows orders by their acknowledgements, and cancellations only by what is in the tables.
    let lost = soaked.cancelled.saturating_sub(soaked.audit.cancelled);
    if lost > 0 {
        terminal.say(format!("  LOST {lost} cancellations that were acknowledged"));
    }
    let broken = !soaked.audit.findings.is_empty() || !published.out_of_order.is_empty() || lost > 0;
    let proven = published.copies > 0 && soaked.kills > 0 && soaked.audit.cancelled > 0;
    let (verdict, reason) = match (broken, proven) {
        (true, _) => (Verdict::Broken, "what is wrong stands above"),
        (false, true) => (Verdict::Held, "nothing lost, nothing doubled, nothing out of order"),
        (false, false) => {
            (Verdict::Inconclusive, "nothing was published twice, so nothing was put to the test")
        }
    };
    terminal.say("");
    terminal.say(format!("VERDICT  {}: {reason} (seed {seed})", verdict.word()));
    terminal.document(&serde_json::json!({
        "verdict": verdict, "reason": reason, "seed": seed, "kills": soaked.kills, "messages": published.messages,
        "copies": published.copies, "outOfOrder": published.out_of_order, "audit": soaked.audit,
    }))?;
    Ok(verdict)
}
