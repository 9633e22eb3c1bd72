//! `cargo demo trace`: one order on its way through three services, as the services' spans tell it.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testbed::eventually;
use trace_store::{ReceivedSpan, TraceStore, hex, text, waterfall};
use uuid::Uuid;

use crate::Verdict;
use crate::choice::Choice;
use crate::http;
use crate::lab::Setup;
use crate::own_system::OwnSystem;
use crate::paths;
use crate::running_system::RunningSystem;
use crate::terminal::Terminal;

/// How long the order, and its spans, may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// What the trace of a confirmed order shows, its `OrderCreated` having been published twice: a service, what it did, and
/// how often.
const EXPECTED: [(&str, &str, usize); 16] = [
    ("orders", "POST /orders", 1),
    ("orders", "outbox OrderCreated", 2),
    ("orders", "publish OrderCreated", 2),
    ("inventory", "process OrderCreated", 2),
    ("inventory", "outbox StockReserved", 1),
    ("inventory", "publish StockReserved", 1),
    ("billing", "process OrderCreated", 2),
    ("billing", "charge", 1),
    ("billing", "outbox PaymentCaptured", 1),
    ("billing", "publish PaymentCaptured", 1),
    ("orders", "process StockReserved", 1),
    ("orders", "process PaymentCaptured", 1),
    ("orders", "outbox OrderConfirmed", 1),
    ("orders", "publish OrderConfirmed", 1),
    // Of those that were processed twice.
    ("inventory", "duplicate OrderCreated", 1),
    ("billing", "duplicate OrderCreated", 1),
];

/// Starts a system whose services send their spans to this process, places an order, has its event published a second time,
/// and draws the trace.
pub(crate) async fn run(choice: Choice, terminal: &Terminal) -> Result<Verdict> {
    let store = TraceStore::start(0).await?;
    let mut setup = Setup::default();
    for service in ["ORDERS", "INVENTORY", "BILLING"] {
        setup = setup.with(&format!("{service}_OTLP_ENDPOINT"), store.endpoint());
    }
    let own = OwnSystem::from(setup);
    let logs = paths::home().join("trace/logs");
    let work = async |system: &RunningSystem| follow(system, &store, terminal).await;
    let traced = RunningSystem::with_own(choice, own, logs, terminal, work).await?;
    Ok(traced.unwrap_or(Verdict::Interrupted))
}

async fn follow(system: &RunningSystem, store: &TraceStore, terminal: &Terminal) -> Result<Verdict> {
    let trace_id = Uuid::new_v4().simple().to_string();
    let order = place(system, &trace_id).await?;
    let status = format!("select status from orders.orders where id = '{order}'");
    eventually("the order to be confirmed", DEADLINE, async || {
        Ok((system.read(&status).await?.trim() == "confirmed").then_some(()))
    })
    .await?;
    // What a relay does that has died between the broker's confirm and its mark: it publishes again.
    system
        .execute_as(
            "orders",
            &format!(
                "update outbox set published_at = null where aggregate_id = '{order}' and aggregate_version = 1;
                 select outbox_wake()"
            ),
        )
        .await?;
    let spans = eventually("the spans of the order", DEADLINE, async || {
        let spans = store.trace(&trace_id);
        let missing = missing(&spans);
        ensure!(missing.is_empty(), "missing: {}", missing.join(", "));
        Ok(Some(spans))
    })
    .await;
    let arrived = store.trace(&trace_id);
    terminal.print("");
    terminal.print(format!("Order {order}, trace {trace_id}, {} spans", arrived.len()));
    terminal.print("");
    terminal.print_all(waterfall(&arrived));
    terminal.print("");
    terminal.print("outbox: from the making of the event until a relay has claimed it. publish: until the broker's confirm.");
    terminal.print("Between publish and process the message is in the queue. The event was published a second time: a copy.");
    terminal.document(&json!({ "order": order, "trace": trace_id, "spans": document(&arrived) }))?;
    match spans {
        Ok(_) => {
            let reason =
                "one trace shows the order from POST to confirmed, and the copies that changed nothing";
            terminal.print_verdict(Verdict::Held, reason);
            Ok(Verdict::Held)
        }
        Err(error) => {
            terminal.print_verdict(Verdict::Broken, &format!("{error:#}"));
            Ok(Verdict::Broken)
        }
    }
}

/// Places an order in a trace that this process begins, and returns its id.
async fn place(system: &RunningSystem, trace_id: &str) -> Result<Uuid> {
    let body = json!({ "customerId": Uuid::new_v4(), "lines": [{ "sku": "TEA-001", "quantity": 2 }] });
    let request = http::order_request(system.orders_url(), &body)?;
    http::place(request.header("traceparent", format!("00-{trace_id}-b7ad6b7169203331-01"))).await
}

/// What a trace should show and does not, or shows and should not.
fn missing(spans: &[ReceivedSpan]) -> Vec<String> {
    let mut wrong = vec![];
    for (service, name, count) in EXPECTED {
        let is_meant = |received: &&ReceivedSpan| match name.strip_prefix("duplicate ") {
            Some(event) => {
                received.span.name == format!("process {event}")
                    && received.attribute("shop.duplicate") == "true"
            }
            None => received.span.name == name,
        };
        let found = spans.iter().filter(|span| span.service == service).filter(is_meant).count();
        if found != count {
            wrong.push(format!("{service}: {name} {found} times, not {count}"));
        }
    }
    let known = |id: &[u8]| spans.iter().any(|received| received.span.span_id == id);
    let is_orphan = |received: &&ReceivedSpan| {
        received.span.name != "POST /orders" && !known(&received.span.parent_span_id)
    };
    let orphans = spans.iter().filter(is_orphan);
    wrong
        .extend(orphans.map(|received| format!("{}: the cause of {}", received.service, received.span.name)));
    wrong
}

fn document(spans: &[ReceivedSpan]) -> Vec<Value> {
    let document = |received: &ReceivedSpan| {
        let span = &received.span;
        let attributes = span.attributes.iter();
        let attributes =
            attributes.map(|attribute| (attribute.key.clone(), json!(text(attribute.value.as_ref()))));
        json!({
            "service": received.service, "name": span.name, "kind": span.kind().as_str_name(),
            "id": hex(&span.span_id), "parent": hex(&span.parent_span_id),
            "startNanos": span.start_time_unix_nano, "endNanos": span.end_time_unix_nano,
            "attributes": attributes.collect::<serde_json::Map<_, _>>(), "error": received.error(),
        })
    };
    spans.iter().map(document).collect()
}
