//! What the services have set aside: shown, tried in a dry run, replayed, discarded.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;
use serde_json::{Value, json};
use testbed::eventually_send;

use crate::operator_client::{self, Id, explain, text};
use crate::running_system::RunningSystem;

/// The most items that the page lists. There may be more; their number is in the metrics.
const MOST: usize = 200;

/// How long RabbitMQ's HTTP API may take to accept a message.
const SEND_DEADLINE: Duration = Duration::from_secs(20);

/// Parked events and dead letters by their ids, such as `inventory/3`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Replay {
    ids: Vec<String>,
    /// Only say what a replay would do.
    dry_run: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Discard {
    ids: Vec<String>,
    note: String,
    /// Required for a parked event: consumers will see a gap in its order's sequence.
    accept_gap: bool,
}

/// Lists parked events and dead letters, each with its cause, by which the page groups them.
pub(crate) async fn list(system: &RunningSystem) -> Result<Vec<Value>> {
    let mut items = vec![];
    operator_client::list(system, None, false, |id, item| {
        items.push(listed(&id, item));
        if items.len() < MOST { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
    .await?;
    Ok(items)
}

fn listed(id: &Id, item: &Value) -> Value {
    let field = |name: &str| text(&item[name]);
    let (kind, cause, detail, since) = if id.is_dead_letter() {
        ("dead letter", field("reason"), field("detail"), field("arrivedAt"))
    } else {
        ("parked event", "refused by the broker".to_owned(), field("lastError"), field("parkedAt"))
    };
    json!({
        "id": id.to_string(),
        "service": id.service,
        "kind": kind,
        "cause": cause,
        "detail": detail,
        "what": if item["eventType"].is_null() { field("messageId") } else { field("eventType") },
        "since": since,
        "behind": item["waitingBehind"].as_i64().unwrap_or_default(),
    })
}

pub(crate) async fn show(system: &RunningSystem, id: &str) -> Result<Value> {
    operator_client::show(system, &id.parse()?).await
}

pub(crate) async fn replay(system: &RunningSystem, replay: Replay) -> Result<Vec<Value>> {
    let ids = replay.ids.iter().map(|id| id.parse()).collect::<Result<_>>()?;
    let selected = operator_client::Replay { ids, dry_run: replay.dry_run, ..Default::default() };
    let mut outcomes = vec![];
    operator_client::replay(system, &selected, |id, item| {
        outcomes.push(outcome(&id, &text(&item["outcome"]), &explain(item)));
    })
    .await?;
    Ok(outcomes)
}

pub(crate) async fn discard(system: &RunningSystem, discard: Discard) -> Result<Vec<Value>> {
    let mut outcomes = vec![];
    for id in &discard.ids {
        let id = id.parse()?;
        let answer = operator_client::discard(system, &id, &discard.note, discard.accept_gap).await?;
        let meaning = match answer["gap"].as_i64() {
            Some(gap) => format!("version {gap} of {} is never published", text(&answer["aggregateId"])),
            None => "its bytes are kept, and it is never applied".to_owned(),
        };
        outcomes.push(outcome(&id, "discarded", &meaning));
    }
    Ok(outcomes)
}

fn outcome(id: &Id, outcome: &str, meaning: &str) -> Value {
    json!({ "id": id.to_string(), "outcome": outcome, "meaning": meaning })
}

/// Sends a message that no consumer can ever apply, so that there is something to look at.
pub(crate) async fn send_bad_message(system: &RunningSystem) -> Result<()> {
    let api = system.broker_api()?;
    // After a restart the broker's HTTP API is there later than the broker.
    eventually_send("RabbitMQ's HTTP API", SEND_DEADLINE, || async {
        api.publish("inventory.events", "this is no event <b>at all</b>", "sent-by-the-board").await.map(Some)
    })
    .await
}
