//! The sequence of one order, as a Mermaid diagram: of the orders of this drill, the one that took longest.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use uuid::Uuid;

use super::drill_run::DrillRun;
use crate::story::story;

#[derive(Deserialize)]
struct Order {
    id: Uuid,
    status: String,
    steps: Vec<Step>,
}

/// Something that was recorded about the order.
#[derive(Deserialize)]
struct Step {
    who: String,
    what: String,
    /// `out` to the broker, `in` from it, or at one participant.
    way: Option<String>,
    /// Milliseconds after it was placed.
    at: f64,
}

/// The diagram, or `None` if no order was placed.
pub(super) async fn slowest_order(run: &DrillRun<'_>) -> Result<Option<String>> {
    let slowest = format!(
        "select coalesce((
             select id::text from orders.orders
             where placed_at > clock_timestamp() - interval '{} s'
             order by coalesce(confirmed_at, cancelled_at, clock_timestamp()) - placed_at desc
             limit 1), '')",
        run.seconds()
    );
    let Ok(id) = run.system.read(&slowest).await?.trim().parse() else { return Ok(None) };
    let order = story(run.system, id).await?;
    let order: Order = serde_json::from_value(order).context("failed to read the slowest order")?;
    Ok(Some(diagram(&order)?))
}

fn diagram(order: &Order) -> Result<String> {
    let mut text =
        format!("`{}`, {} at the end. Times are seconds after it was placed.\n\n", order.id, order.status);
    text.push_str("```mermaid\nsequenceDiagram\n");
    for participant in ["client", "orders", "RabbitMQ", "inventory", "billing", "provider"] {
        writeln!(text, "    participant {participant}")?;
    }
    writeln!(text, "    client->>orders: POST /orders (0.000)")?;
    for Step { who, what, way, at } in &order.steps {
        let who = who.trim_start_matches("relay of ").trim_start_matches("payment ");
        let seconds = at / 1000.0;
        match way.as_deref() {
            Some("out") => writeln!(text, "    {who}->>RabbitMQ: {what} ({seconds:.3})")?,
            Some(_) => writeln!(text, "    RabbitMQ->>{who}: {what} ({seconds:.3})")?,
            None => writeln!(text, "    Note over {who}: {what} ({seconds:.3})")?,
        }
    }
    text.push_str("```\n");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagram_has_an_arrow_to_the_broker_one_from_it_and_a_note_at_one() {
        let step = |who: &str, what: &str, way: Option<&str>| Step {
            who: who.into(),
            what: what.into(),
            way: way.map(str::to_owned),
            at: 1_500.0,
        };
        let steps = vec![
            step("relay of orders", "marked", Some("out")),
            step("inventory", "reserved", Some("in")),
            step("orders", "confirmed", None),
        ];
        let text = diagram(&Order { id: Uuid::nil(), status: "confirmed".into(), steps }).unwrap();
        for line in
            ["orders->>RabbitMQ: marked", "RabbitMQ->>inventory: reserved", "Note over orders: confirmed"]
        {
            assert!(text.contains(&format!("    {line} (1.500)\n")), "{text}");
        }
    }
}
