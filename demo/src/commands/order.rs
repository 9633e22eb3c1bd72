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
const APPLIED_WITHIN: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
struct Placed {
    id: Uuid,
}

/// Milliseconds after the order was placed, by the database's clock; `null` is "not yet".
#[derive(Debug, Default, Deserialize, Serialize)]
struct Steps {
    published: Option<f64>,
    reserved: Option<f64>,
    invoiced: Option<f64>,
}

/// Places an order with the system that is running and follows it.
pub(crate) async fn run(choice: Choice, terminal: &Terminal) -> Result<Verdict> {
    let shop = Shop::find(choice.wanted()).await?.context(super::up::NOTHING_RUNS)?;
    follow(&shop, terminal, true).await
}

/// A line per step. `Inconclusive` if the last effect does not come in time: nothing is known to be lost.
pub(crate) async fn follow(shop: &Shop, terminal: &Terminal, document: bool) -> Result<Verdict> {
    let ledger = Ledger::open(&shop.ledger_path().await?)?;
    let order = serde_json::json!({
        "customerId": Uuid::new_v4(),
        "lines": [{ "sku": "TEA-001", "quantity": 2 }, { "sku": "MUG-001", "quantity": 1 }],
    });
    let asked = Instant::now();
    let answer = http::client()?.post(format!("{}/orders", shop.orders_url())).json(&order).send().await;
    let answer = answer.with_context(|| format!("{} does not answer", shop.orders_url()))?;
    let (status, body) = (answer.status().as_u16(), answer.text().await?);
    let took = asked.elapsed();
    ensure!(status == 201, "the order was refused with {status}: {body}");
    let Placed { id } = serde_json::from_str(&body).with_context(|| format!("201, but no id in {body}"))?;
    ledger.note(id, SystemTime::now());
    terminal.say(format!(
        "  accepted   201 after {:>6.1} ms   {}/orders/{id}",
        milliseconds(took),
        shop.orders_url()
    ));

    let mut seen = Steps::default();
    let query = steps_query(id);
    let followed = eventually("both effects", APPLIED_WITHIN, async || {
        let now: Steps = serde_json::from_str(&shop.read(&query).await?)?;
        let show = |what: &str, at: Option<f64>, before: Option<f64>, words: &str| {
            if let (Some(at), None) = (at, before) {
                terminal.say(format!("  {what:<10} {at:>13.1} ms   {words}"));
            }
        };
        show("published", now.published, seen.published, "RabbitMQ has confirmed the event");
        show("reserved", now.reserved, seen.reserved, "inventory has reserved both lines");
        show("invoiced", now.invoiced, seen.invoiced, "billing has issued the invoice");
        seen = now;
        let all = seen.published.is_some() && seen.reserved.is_some() && seen.invoiced.is_some();
        Ok(all.then_some(()))
    })
    .await;
    if document {
        terminal.document(
            &serde_json::json!({ "id": id, "acceptedMilliseconds": milliseconds(took), "steps": seen }),
        )?;
    }
    if followed.is_err() {
        terminal.say(format!(
            "  not applied within {} s: is the broker up? The order is safe.",
            APPLIED_WITHIN.as_secs()
        ));
        return Ok(Verdict::Inconclusive);
    }
    Ok(Verdict::Held)
}

fn steps_query(id: Uuid) -> String {
    format!(
        "select json_build_object(
             'published', (select extract(epoch from published_at - o.placed_at) * 1000 from orders.outbox
                           where aggregate_id = o.id and event_type = 'OrderCreated'),
             'reserved', (select extract(epoch from max(reserved_at) - o.placed_at) * 1000
                          from inventory.reservations where order_id = o.id
                          having count(*) = (select count(*) from orders.order_lines where order_id = o.id)),
             'invoiced', (select extract(epoch from min(issued_at) - o.placed_at) * 1000 from billing.invoices
                          where order_id = o.id))::text
         from orders.orders o where o.id = '{id}'"
    )
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
