//! The sequence of one order, as a Mermaid diagram: of the orders of this drill, the one that took longest.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::drill_run::DrillRun;

#[derive(Deserialize)]
struct Order {
    id: String,
    status: String,
    steps: Vec<Step>,
}

/// Something that was recorded about the order, with the seconds after it was placed.
#[derive(Deserialize)]
struct Step {
    from: String,
    /// `null`: at one participant.
    to: Option<String>,
    what: String,
    at: f64,
}

/// The diagram, or `None` if no order was placed.
pub(super) async fn slowest_order(run: &DrillRun<'_>) -> Result<Option<String>> {
    let found = run.system.read(&query(run.seconds())).await?;
    if found.trim().is_empty() {
        return Ok(None);
    }
    let order: Order = serde_json::from_str(&found).context("failed to read the slowest order")?;
    Ok(Some(diagram(&order)?))
}

fn diagram(order: &Order) -> Result<String> {
    let mut text =
        format!("`{}`, {} at the end. Times are seconds after it was placed.\n\n", order.id, order.status);
    text.push_str("```mermaid\nsequenceDiagram\n");
    for participant in ["client", "orders", "RabbitMQ", "inventory", "billing"] {
        writeln!(text, "    participant {participant}")?;
    }
    for Step { from, to, what, at } in &order.steps {
        match to {
            Some(to) => writeln!(text, "    {from}->>{to}: {what} ({at:.3})")?,
            None => writeln!(text, "    Note over {from}: {what} ({at:.3})")?,
        }
    }
    text.push_str("```\n");
    Ok(text)
}

fn query(seconds: f64) -> String {
    format!(
        "with slowest as (
             select * from orders.orders
             where placed_at > clock_timestamp() - interval '{seconds} s'
             order by coalesce(confirmed_at, cancelled_at, clock_timestamp()) - placed_at desc
             limit 1
         ), event as (
             select 'orders' as service, o.* from orders.outbox o where aggregate_id = (select id from slowest)
             union all
             select 'inventory', o.* from inventory.outbox o join inventory.reservations r on r.id = o.aggregate_id
             where r.order_id = (select id from slowest)
             union all
             select 'billing', o.* from billing.outbox o join billing.payments p on p.id = o.aggregate_id
             where p.order_id = (select id from slowest)
         ), processed as (
             select 'orders' as service, event_id, processed_at from orders.processed_events
             union all select 'inventory', event_id, processed_at from inventory.processed_events
             union all select 'billing', event_id, processed_at from billing.processed_events
         ), step (\"from\", \"to\", what, at) as (
             select 'client', 'orders', 'POST /orders', placed_at from slowest
             union all
             select service, null, event_type || ' committed', created_at from event
             union all
             select service, 'RabbitMQ', event_type || ' marked as published', published_at from event
             union all
             select 'RabbitMQ', processed.service, event.event_type || ' applied', processed_at
             from processed join event using (event_id)
             union all
             select 'orders', null, status, coalesce(confirmed_at, cancelled_at) from slowest
         )
         select coalesce((
             select json_build_object('id', id, 'status', status, 'steps', (
                 select json_agg(json_build_object('from', \"from\", 'to', \"to\", 'what', what,
                                                   'at', extract(epoch from at - slowest.placed_at)) order by at)
                 from step where at is not null))::text
             from slowest), '')"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagram_has_an_arrow_between_two_and_a_note_at_one() {
        let step = |to: Option<&str>| Step {
            from: "orders".into(),
            to: to.map(str::to_owned),
            what: "OrderCreated".into(),
            at: 1.5,
        };
        let steps = vec![step(Some("RabbitMQ")), step(None)];
        let text = diagram(&Order { id: "1".into(), status: "confirmed".into(), steps }).unwrap();
        assert!(text.contains("    orders->>RabbitMQ: OrderCreated (1.500)\n"), "{text}");
        assert!(text.contains("    Note over orders: OrderCreated (1.500)\n"), "{text}");
    }
}
