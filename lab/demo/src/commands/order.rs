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
use crate::terminal::Terminal;

/// How long an order is followed. Milliseconds are usual; while the broker is unavailable it takes as long as that.
const END_DEADLINE: Duration = Duration::from_secs(30);

/// One step of the order, in milliseconds after it was placed, by the databases' clocks.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Step {
    what: String,
    at: f64,
}

#[derive(Debug, Deserialize)]
struct Progress {
    status: String,
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

/// Prints a line that grows with each step. The verdict is inconclusive if the order does not end in time.
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
    let sent = Instant::now();
    let id = http::place(http::order_request(system.orders_url(), &order)?).await?;
    let took = sent.elapsed();
    ledger.record(id, SystemTime::now());
    terminal.print(format!("  {}/orders/{id}", system.orders_url()));
    let mut line = format!("  accepted (201 after {:.1} ms)", milliseconds(took));

    let mut seen: Vec<Step> = vec![];
    let mut status = String::new();
    let query = progress_query(id);
    let followed = eventually("the order's end", END_DEADLINE, async || {
        let progress: Progress = serde_json::from_str(&system.read(&query).await?)?;
        // Steps are appended as they are read. A step that was written earlier may be read later.
        for step in progress.steps {
            if !seen.contains(&step) {
                line.push_str(&format!(" → {} {:.0} ms", step.what, step.at));
                seen.push(step);
            }
        }
        terminal.draw(&line);
        status = progress.status;
        Ok((status == "ended").then_some(()))
    })
    .await;
    terminal.print(line);
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

/// An order has ended when it is confirmed, or when it is cancelled and no stock or money is held for it any more.
fn progress_query(id: Uuid) -> String {
    format!(
        "with step (what, at) as (
             select 'published', min(published_at) from orders.outbox
             where aggregate_id = '{id}' and event_type = 'OrderCreated'
             union all
             select case state when 'rejected' then 'inventory: rejected' else 'inventory: reserved' end, decided_at
             from inventory.reservations where order_id = '{id}'
             union all
             select case when charge_id is null then 'billing: declined' else 'billing: captured' end, answered_at
             from billing.payments where order_id = '{id}' and answered_at is not null
             union all
             select 'confirmed', confirmed_at from orders.orders where id = '{id}'
             union all
             select 'cancelled (' || cancelled_for || ')', cancelled_at from orders.orders where id = '{id}'
             union all
             select 'inventory: released', released_at from inventory.reservations where order_id = '{id}'
             union all
             select 'billing: refunded', refunded_at from billing.payments where order_id = '{id}'
         )
         select json_build_object(
             'status', case
                 when o.status = 'confirmed' then 'ended'
                 when o.status <> 'cancelled' then 'open'
                 when exists (select from inventory.reservations where order_id = o.id and state = 'held')
                   or exists (select from billing.payments where order_id = o.id
                              and state in ('asked', 'captured', 'refunding')) then 'being compensated'
                 when not exists (select from inventory.reservations where order_id = o.id)
                   or not exists (select from billing.payments where order_id = o.id) then 'partly answered'
                 else 'ended' end,
             'steps', coalesce((
                 select json_agg(json_build_object(
                            'what', what, 'at', extract(epoch from at - o.placed_at) * 1000) order by at)
                 from step where at is not null), '[]'))::text
         from orders.orders o where o.id = '{id}'"
    )
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
