//! `cargo demo order`: places one order and follows it to its end.

use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use testbed::eventually;
use uuid::Uuid;

use crate::Verdict;
use crate::choice::Choice;
use crate::http;
use crate::running_system::RunningSystem;
use crate::story::story;
use crate::terminal::Terminal;

/// How long an order is followed. Milliseconds are usual; while the broker is unavailable it takes as long as that.
const END_DEADLINE: Duration = Duration::from_secs(30);

/// One step of the order, in milliseconds after it was placed, by the databases' clocks.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Step {
    who: String,
    what: String,
    at: f64,
}

/// What [`story`] tells.
#[derive(Deserialize)]
struct Progress {
    status: String,
    ended: bool,
    steps: Vec<Step>,
}

/// Places an order with the system that is running, and follows it.
pub(crate) async fn run(choice: Choice, kind: OrderKind, terminal: &Terminal) -> Result<Verdict> {
    let system = RunningSystem::require(choice).await?;
    follow(&system, kind, terminal, true).await
}

/// Which order is placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OrderKind {
    /// One that is confirmed.
    #[default]
    Good,
    /// More pieces than there are: inventory rejects it, and billing refunds what was charged.
    OutOfStock,
    /// A customer who cannot pay: the provider declines the charge, and inventory releases what was reserved.
    Declined,
}

/// Prints a line for each step. The verdict is inconclusive if the order does not end in time.
pub(crate) async fn follow(
    system: &RunningSystem,
    kind: OrderKind,
    terminal: &Terminal,
    document: bool,
) -> Result<Verdict> {
    let ledger = system.ledger().await?;
    let order = match kind {
        OrderKind::Good => serde_json::json!({
            "customerId": Uuid::new_v4(),
            "lines": [{ "sku": "TEA-001", "quantity": 2 }, { "sku": "MUG-001", "quantity": 1 }],
        }),
        OrderKind::OutOfStock => serde_json::json!({
            "customerId": Uuid::new_v4(), "lines": [{ "sku": "POT-003", "quantity": 1000 }],
        }),
        // The payment provider's stand-in declines customers whose id begins like this.
        OrderKind::Declined => serde_json::json!({
            "customerId": format!("dec11ed0{}", &Uuid::new_v4().to_string()[8..]),
            "lines": [{ "sku": "TEA-001", "quantity": 2 }],
        }),
    };
    let key = Uuid::new_v4().to_string();
    let (id, took) = http::retried("the order to be accepted", END_DEADLINE, async || {
        let request = http::order_request(system.orders_url(), &order)?.header("Idempotency-Key", &key);
        let sent = Instant::now();
        Ok((http::place(request).await?, sent.elapsed()))
    })
    .await?;
    ledger.record(id, SystemTime::now());
    terminal.print(format!("  {}/orders/{id}", system.orders_url()));
    terminal.print(format!("  accepted (201 after {:.1} ms)", milliseconds(took)));

    let mut seen: Vec<Step> = vec![];
    let mut status = String::new();
    let followed = eventually("the order's end", END_DEADLINE, async || {
        let progress: Progress = serde_json::from_value(story(system, id).await?)?;
        // A step that was written earlier may be read later.
        for step in progress.steps {
            if !seen.contains(&step) {
                terminal.print(format!("  {:>6.0} ms  {}: {}", step.at, step.who, step.what));
                seen.push(step);
            }
        }
        status = progress.status;
        Ok(progress.ended.then_some(()))
    })
    .await;
    if document {
        seen.sort_by(|a, b| a.at.total_cmp(&b.at));
        terminal.document(
            &serde_json::json!({ "id": id, "acceptedMilliseconds": milliseconds(took), "steps": seen }),
        )?;
    }
    if followed.is_err() {
        terminal.print(format!(
            "  not ended after {} s ({status}): is the broker unavailable? The order is safe.",
            END_DEADLINE.as_secs()
        ));
        return Ok(Verdict::Inconclusive);
    }
    Ok(Verdict::Held)
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
