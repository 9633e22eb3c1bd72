//! What the services have set aside, through their admin APIs: list it, show it, replay it, discard it.

use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::part::SERVICES;
use crate::running_system::RunningSystem;

/// Bounds the loops over pages, in case a service never answers with the last one.
const MAX_PAGES: usize = 1_000;

/// The collections of a service's admin API: events that the relay could not publish, messages that the consumer could not
/// apply, and events that were published.
const PARKED_EVENTS: &str = "/admin/parked";
const DEAD_LETTERS: &str = "/admin/dead-letters";
const PUBLISHED_EVENTS: &str = "/admin/published";

/// What can wait for an operator.
const WAITING: [&str; 2] = [PARKED_EVENTS, DEAD_LETTERS];

/// A service and an id there: `inventory/3` is a dead letter, `orders/` and an event's id is an event.
#[derive(Clone, Debug)]
pub(crate) struct Id {
    pub(crate) service: &'static str,
    /// A number for a dead letter, a string for an event.
    key: Value,
}

impl Id {
    pub(crate) fn of_order_event(event: Uuid) -> Self {
        Self { service: "orders", key: json!(event) }
    }

    fn of_item(service: &'static str, collection: &str, item: &Value) -> Self {
        let field = if collection == DEAD_LETTERS { "id" } else { "eventId" };
        Self { service, key: item[field].clone() }
    }

    pub(crate) fn is_dead_letter(&self) -> bool {
        self.key.is_number()
    }
}

impl FromStr for Id {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = || {
            format!(
                "`{text}` is not an id: expected a service and a number or an event's id, such as inventory/3"
            )
        };
        let (service, key) = text.split_once('/').with_context(invalid)?;
        let service = SERVICES.into_iter().find(|known| *known == service).with_context(invalid)?;
        let number = key.parse::<i64>().ok().map(|id| json!(id));
        let key = number.or_else(|| key.parse::<Uuid>().ok().map(|id| json!(id)));
        Ok(Self { service, key: key.with_context(invalid)? })
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.service, text(&self.key))
    }
}

/// What is replayed: of these ids, of all, or of a time.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Replay {
    /// Ids of the list, for example inventory/3 (a dead letter) or orders/0190… (a parked event).
    pub(crate) ids: Vec<Id>,
    /// Everything that waits.
    #[arg(long, conflicts_with_all = ["ids", "from", "to"])]
    pub(crate) all: bool,
    /// What was set aside at this time or later: 2026-01-31T12:00:00Z.
    #[arg(long, conflicts_with = "ids")]
    pub(crate) from: Option<String>,
    /// What was set aside before this time.
    #[arg(long, conflicts_with = "ids")]
    pub(crate) to: Option<String>,
    /// At this service only.
    #[arg(long, value_parser = SERVICES, conflicts_with = "ids")]
    pub(crate) at: Option<String>,
    /// Publish events again that were published already, selected by their ids or by the time of publishing.
    #[arg(long, conflicts_with = "all")]
    pub(crate) published: bool,
    /// Also what is too old: consumers may have erased their records of it, and apply it a second time.
    #[arg(long)]
    pub(crate) force: bool,
    /// Only say what a replay would do.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// These collections of all services, or of the one that is chosen.
fn places(at: Option<&str>, collections: &[&'static str]) -> Vec<(&'static str, &'static str)> {
    let services = SERVICES.into_iter().filter(|service| at.is_none_or(|at| at == *service));
    services.flat_map(|service| collections.iter().map(move |of| (service, *of))).collect()
}

/// Calls `each` with what waits for an operator, oldest first within a service; with `resolved_too`, also with the dead letters
/// that are resolved. Ends when `each` has enough.
pub(crate) async fn list(
    system: &RunningSystem,
    at: Option<&str>,
    resolved_too: bool,
    mut each: impl FnMut(Id, &Value) -> ControlFlow<()>,
) -> Result<()> {
    for (service, collection) in places(at, &WAITING) {
        // A parked event that is resolved is an ordinary event again, or a row of `outbox_discarded`.
        let resolved = if resolved_too && collection == DEAD_LETTERS { "&all=true" } else { "" };
        let mut after = json!(0);
        for _ in 0..MAX_PAGES {
            let path = format!("{collection}?limit=100&after={after}{resolved}");
            let page = system.admin(service, &path, None).await?;
            for item in page["items"].as_array().into_iter().flatten() {
                if each(Id::of_item(service, collection, item), item).is_break() {
                    return Ok(());
                }
            }
            after = page["next"].clone();
            if after.is_null() {
                break;
            }
        }
    }
    Ok(())
}

/// Returns everything about one parked event or dead letter.
pub(crate) async fn show(system: &RunningSystem, id: &Id) -> Result<Value> {
    let collection = if id.is_dead_letter() { DEAD_LETTERS } else { PARKED_EVENTS };
    system.admin(id.service, &format!("{collection}/{}", text(&id.key)), None).await
}

/// Publishes events again, and applies dead letters again. Calls `each` with every outcome as it is known: if the replay fails
/// half-way, the first ones were replayed.
pub(crate) async fn replay(
    system: &RunningSystem,
    replay: &Replay,
    mut each: impl FnMut(Id, &Value),
) -> Result<()> {
    let Replay { ids, all, from, to, at, published, force, dry_run } = replay;
    ensure!(
        !ids.is_empty() || *all || from.is_some() || to.is_some(),
        "nothing is selected: give ids, --all, or --from and --to"
    );
    ensure!(
        !published || !ids.iter().any(Id::is_dead_letter),
        "a number is a dead letter: --published takes the ids of events, for example orders/0190…"
    );
    let collections = if *published { &[PUBLISHED_EVENTS][..] } else { &WAITING };
    for (service, collection) in places(at.as_deref(), collections) {
        let mut body = json!({ "force": force, "dryRun": dry_run, "after": 0 });
        if !ids.is_empty() {
            let letters = collection == DEAD_LETTERS;
            let here = ids.iter().filter(|id| id.service == service && id.is_dead_letter() == letters);
            body["ids"] = here.map(|id| id.key.clone()).collect();
            if body["ids"] == json!([]) {
                continue;
            }
        } else if *all {
            body["all"] = json!(true);
        } else {
            (body["from"], body["to"]) = (json!(from), json!(to));
        }
        for _ in 0..MAX_PAGES {
            let page = system.admin(service, &format!("{collection}/replay"), Some(&body)).await?;
            for item in page["items"].as_array().into_iter().flatten() {
                each(Id::of_item(service, collection, item), item);
            }
            body["after"] = page["next"].clone();
            if body["after"].is_null() {
                break;
            }
        }
    }
    Ok(())
}

/// Discards a parked event, which then is never published, or a dead letter, which then is never applied. `note` says why.
/// `accept_gap` is required for a parked event: consumers will see a gap in its order's sequence.
pub(crate) async fn discard(system: &RunningSystem, id: &Id, note: &str, accept_gap: bool) -> Result<Value> {
    if id.is_dead_letter() {
        let body = json!({ "ids": [id.key], "note": note });
        let answer = system.admin(id.service, &format!("{DEAD_LETTERS}/discard"), Some(&body)).await?;
        ensure!(answer["untouched"] == json!([]), "{id} does not wait for an operator, or does not exist");
        return Ok(answer);
    }
    let path = format!("{PARKED_EVENTS}/{}/discard", text(&id.key));
    system.admin(id.service, &path, Some(&json!({ "note": note, "acceptGap": accept_gap }))).await
}

/// The meaning of an outcome of a replay.
pub(crate) fn explain(item: &Value) -> String {
    match item["outcome"].as_str().unwrap_or_default() {
        "pending" => "the relay publishes it again".into(),
        "applied" => "its effect is committed".into(),
        "would-be-pending" => "the relay would publish it again".into(),
        "would-be-applied" => "it would be given to its handler, which may still fail".into(),
        "unchanged" => "it had been applied before".into(),
        "too-old" => "consumers may have erased their records of it: --force replays it all the same".into(),
        "discarded" => "it was discarded before: --force replays it all the same".into(),
        "not-found" => "the service has none with this id in this state".into(),
        _ => text(&item["detail"]),
    }
}

/// A value without quotes. Null is an empty text.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_a_service_and_an_item_there() {
        for good in ["inventory/3", "orders/12", "billing/0190a1b2-0000-7000-8000-000000000001"] {
            assert_eq!(good.parse::<Id>().unwrap().to_string(), good);
        }
        for bad in ["", "3", "inventory", "inventory/x", "orders/", "warehouse/3"] {
            assert!(bad.parse::<Id>().is_err(), "{bad}");
        }
    }
}
