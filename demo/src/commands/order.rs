//! `cargo demo order`: one order, and what becomes of it.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use testbed::eventually;
use uuid::Uuid;

use crate::choice::Choice;
use crate::http;
use crate::ledger::Ledger;
use crate::shop::Shop;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// Milliseconds are usual. While the broker is away it takes as long as that.
const ENDED_WITHIN: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
struct Placed {
    id: Uuid,
}

/// One thing that happened to the order, in milliseconds after it was placed, by the databases' clocks.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Step {
    what: String,
    at: f64,
}

/// What happened so far, and whether the order has come to its end.
#[derive(Debug, Default, Deserialize)]
struct Life {
    status: String,
    steps: Vec<Step>,
}

/// Places an order with the system that is running and follows it.
pub(crate) async fn run(choice: Choice, kind: Kind, terminal: &Terminal) -> Result<Verdict> {
    let shop = Shop::find(choice.wanted()).await?.context(super::up::NOTHING_RUNS)?;
    follow(&shop, kind, terminal, true).await
}

/// Which order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// One that can be had and paid.
    #[default]
    Good,
    /// More pieces than there are: inventory rejects it, and what was charged is given back.
    OutOfStock,
    /// By a customer without money: billing cannot charge, and what was put aside is put back.
    Declined,
}

/// A line that grows while it happens. `Inconclusive` if the end does not come in time: nothing is known to be lost.
pub(crate) async fn follow(shop: &Shop, kind: Kind, terminal: &Terminal, document: bool) -> Result<Verdict> {
    let ledger = Ledger::open(&shop.ledger_path().await?)?;
    let order = match kind {
        Kind::Good => serde_json::json!({
            "customerId": Uuid::new_v4(),
            "lines": [{ "sku": "TEA-001", "quantity": 2 }, { "sku": "MUG-001", "quantity": 1 }],
        }),
        Kind::OutOfStock => serde_json::json!({
            "customerId": Uuid::new_v4(), "lines": [{ "sku": "POT-003", "quantity": 1000 }],
        }),
        // The provider's stand-in declines customers whose id begins like this.
        Kind::Declined => serde_json::json!({
            "customerId": format!("dec11ed0{}", &Uuid::new_v4().to_string()[8..]),
            "lines": [{ "sku": "TEA-001", "quantity": 2 }],
        }),
    };
    let asked = Instant::now();
    let answer = http::client()?.post(format!("{}/orders", shop.orders_url())).json(&order).send().await;
    let answer = answer.with_context(|| format!("{} does not answer", shop.orders_url()))?;
    let (status, body) = (answer.status().as_u16(), answer.text().await?);
    let took = asked.elapsed();
    ensure!(status == 201, "the order was refused with {status}: {body}");
    let Placed { id } = serde_json::from_str(&body).with_context(|| format!("201, but no id in {body}"))?;
    ledger.note(id, SystemTime::now());
    terminal.say(format!("  {}/orders/{id}", shop.orders_url()));
    let mut line = format!("  accepted (201 after {:.1} ms)", milliseconds(took));

    let mut seen: Vec<Step> = vec![];
    let mut status = String::new();
    let query = life_query(id);
    let followed = eventually("the order's end", ENDED_WITHIN, async || {
        let life: Life = serde_json::from_str(&shop.read(&query).await?)?;
        // Steps are appended as they are seen. One that was written earlier may be seen later.
        for step in life.steps {
            if !seen.contains(&step) {
                line.push_str(&format!(" → {} {:.0} ms", step.what, step.at));
                seen.push(step);
            }
        }
        terminal.draw(&line);
        status = life.status;
        Ok((status == "at rest").then_some(()))
    })
    .await;
    terminal.say(line);
    if document {
        seen.sort_by(|a, b| a.at.total_cmp(&b.at));
        terminal.document(
            &serde_json::json!({ "id": id, "acceptedMilliseconds": milliseconds(took), "steps": seen }),
        )?;
    }
    if followed.is_err() {
        terminal.say(format!(
            "  not at its end within {} s ({status}): is the broker up? The order is safe.",
            ENDED_WITHIN.as_secs()
        ));
        return Ok(Verdict::Inconclusive);
    }
    Ok(Verdict::Held)
}

/// An order is at rest when it is confirmed or cancelled and nothing is held or charged for a cancelled one any more.
fn life_query(id: Uuid) -> String {
    format!(
        "with life (what, at) as (
             select 'published', min(published_at) from orders.outbox
             where aggregate_id = '{id}' and event_type = 'OrderCreated'
             union all
             select case state when 'rejected' then 'inventory: too little' else 'inventory: reserved' end, decided_at
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
                 when o.status = 'confirmed' then 'at rest'
                 when o.status <> 'cancelled' then 'open'
                 when exists (select from inventory.reservations where order_id = o.id and state = 'held')
                   or exists (select from billing.payments where order_id = o.id
                              and state in ('asked', 'captured', 'refunding')) then 'being undone'
                 when not exists (select from inventory.reservations where order_id = o.id)
                   or not exists (select from billing.payments where order_id = o.id) then 'half answered'
                 else 'at rest' end,
             'steps', coalesce((
                 select json_agg(json_build_object(
                            'what', what, 'at', extract(epoch from at - o.placed_at) * 1000) order by at)
                 from life where at is not null), '[]'))::text
         from orders.orders o where o.id = '{id}'"
    )
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
