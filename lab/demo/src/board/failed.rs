//! What the services have set aside: shown, tried in a dry run, replayed, discarded.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::Result;
use axum::Json;
use axum::extract::{Path, State};
use serde::Deserialize;
use serde_json::{Value, json};
use testbed::eventually_send;

use crate::operator_client::{self, Id, explain, text};

use super::answer::Answer;
use super::board_state::BoardState;

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
pub(crate) async fn list(State(state): State<BoardState>) -> Answer<Vec<Value>> {
    let mut items = vec![];
    operator_client::list(&state.system, None, false, |id, item| {
        items.push(listed(&id, item));
        if items.len() < MOST { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
    .await?;
    Ok(Json(items))
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

pub(crate) async fn show(
    State(state): State<BoardState>,
    Path((service, key)): Path<(String, String)>,
) -> Answer<Value> {
    let id = format!("{service}/{key}").parse()?;
    Ok(Json(operator_client::show(&state.system, &id).await?))
}

pub(crate) async fn replay(
    State(state): State<BoardState>,
    Json(replay): Json<Replay>,
) -> Answer<Vec<Value>> {
    let ids = replay.ids.iter().map(|id| id.parse()).collect::<Result<_>>()?;
    let selected = operator_client::Replay { ids, dry_run: replay.dry_run, ..Default::default() };
    let mut outcomes = vec![];
    operator_client::replay(&state.system, &selected, |id, item| {
        outcomes.push(outcome(&id, &text(&item["outcome"]), &explain(item)));
    })
    .await?;
    Ok(Json(outcomes))
}

pub(crate) async fn discard(
    State(state): State<BoardState>,
    Json(discard): Json<Discard>,
) -> Answer<Vec<Value>> {
    let mut outcomes = vec![];
    for id in &discard.ids {
        let id = id.parse()?;
        let answer = operator_client::discard(&state.system, &id, &discard.note, discard.accept_gap).await?;
        let meaning = match answer["gap"].as_i64() {
            Some(gap) => format!("version {gap} of {} is never published", text(&answer["aggregateId"])),
            None => "its bytes are kept, and it is never applied".to_owned(),
        };
        outcomes.push(outcome(&id, "discarded", &meaning));
    }
    Ok(Json(outcomes))
}

fn outcome(id: &Id, outcome: &str, meaning: &str) -> Value {
    json!({ "id": id.to_string(), "outcome": outcome, "meaning": meaning })
}

/// Sends a message that no consumer can ever apply, so that there is something to look at.
pub(crate) async fn send_bad_message(State(state): State<BoardState>) -> Answer<Value> {
    let api = state.system.broker_api()?;
    // After a restart the broker's HTTP API is there later than the broker.
    eventually_send("RabbitMQ's HTTP API", SEND_DEADLINE, || async {
        api.publish("inventory.events", "this is no event <b>at all</b>", "sent-by-the-board").await.map(Some)
    })
    .await?;
    Ok(Json(json!({})))
}
