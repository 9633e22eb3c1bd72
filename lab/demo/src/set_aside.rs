//! What an operator does with dead letters and with what was lost, for drills and the soak.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::SystemTime;

use anyhow::Result;
use uuid::Uuid;

use crate::operator_client::{Id, Replay, discard, list, replay, text};
use crate::part::SERVICES;
use crate::running_system::RunningSystem;

/// How many events one request may name.
const MAX_IDS: usize = 100;

/// The reasons that say only that a message was tried until a limit was reached.
pub(crate) const GIVEN_UP: [&str; 4] = ["unexpected", "attempt-limit", "delivery-limit", "rejected"];

/// Replays all dead letters. Returns how many were applied.
pub(crate) async fn replay_all(system: &RunningSystem) -> Result<usize> {
    count(system, Replay { all: true, ..Replay::default() }, "applied").await
}

/// Publishes events of the order service again whose ids this query returns as one list. Returns how many.
pub(crate) async fn publish_again(system: &RunningSystem, ids: &str) -> Result<usize> {
    let ids: Vec<Uuid> = serde_json::from_str(&system.read(ids).await?)?;
    let mut again = 0;
    for ids in ids.chunks(MAX_IDS) {
        let ids = ids.iter().map(|id| Id::of_order_event(*id)).collect();
        again += count(system, Replay { ids, published: true, ..Replay::default() }, "pending").await?;
    }
    Ok(again)
}

/// Publishes again what a service has published since. Returns how many events these are.
pub(crate) async fn publish_since(system: &RunningSystem, service: &str, from: SystemTime) -> Result<usize> {
    let from = Some(humantime::format_rfc3339_millis(from).to_string());
    let at = Some(service.to_owned());
    count(system, Replay { from, at, published: true, ..Replay::default() }, "pending").await
}

/// Replays, and counts an outcome.
async fn count(system: &RunningSystem, selected: Replay, outcome: &str) -> Result<usize> {
    let mut count = 0;
    replay(system, &selected, |_, item| count += usize::from(item["outcome"] == outcome)).await?;
    Ok(count)
}

/// How many dead letters wait for an operator.
pub(crate) async fn count_waiting(system: &RunningSystem) -> Result<usize> {
    Ok(count_reasons(system).await?.values().sum())
}

/// How many dead letters wait for an operator, by their reason.
pub(crate) async fn count_reasons(system: &RunningSystem) -> Result<BTreeMap<String, usize>> {
    let letters = SERVICES
        .map(|service| format!("select reason from {service}.dead_letters where resolved_at is null"))
        .join(" union all ");
    let query = format!(
        "select coalesce(json_object_agg(reason, letters), '{{}}')::text
         from (select reason, count(*) as letters from ({letters}) waiting group by reason) counted"
    );
    Ok(serde_json::from_str(&system.read(&query).await?)?)
}

/// Discards all dead letters that wait. Returns their message ids.
pub(crate) async fn discard_all(system: &RunningSystem, note: &str) -> Result<Vec<String>> {
    let (mut ids, mut message_ids) = (vec![], vec![]);
    list(system, None, false, |id, letter| {
        if id.is_dead_letter() {
            ids.push(id);
            message_ids.push(text(&letter["messageId"]));
        }
        ControlFlow::Continue(())
    })
    .await?;
    for id in ids {
        discard(system, &id, note, false).await?;
    }
    Ok(message_ids)
}
