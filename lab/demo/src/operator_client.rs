//! What the services have set aside, through their admin APIs: list it, show it, replay it, discard it.

use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::running_system::RunningSystem;

/// Bounds the loops over pages, in case a service never answers with the last one.
const MAX_PAGES: usize = 1_000;

/// A service that sets events and messages aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Orders,
    Inventory,
    Billing,
}

impl Service {
    const ALL: [Self; 3] = [Self::Orders, Self::Inventory, Self::Billing];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Orders => "orders",
            Self::Inventory => "inventory",
            Self::Billing => "billing",
        }
    }
}

impl FromStr for Service {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|service| service.name() == name);
        found.ok_or("expected orders, inventory or billing".into())
    }
}

/// A collection of a service's admin API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collection {
    /// Events that the relay could not publish.
    ParkedEvents,
    /// Messages that the consumer could not apply.
    DeadLetters,
    /// Events that were published.
    PublishedEvents,
}

impl Collection {
    /// What can wait for an operator.
    const WAITING: [Self; 2] = [Self::ParkedEvents, Self::DeadLetters];

    fn path(self) -> &'static str {
        match self {
            Self::ParkedEvents => "/admin/parked",
            Self::DeadLetters => "/admin/dead-letters",
            Self::PublishedEvents => "/admin/published",
        }
    }

    /// The field that holds an item's id.
    fn id_field(self) -> &'static str {
        if self == Self::DeadLetters { "id" } else { "eventId" }
    }
}

/// A service and an id there: `inventory/3` is a dead letter, `orders/` and an event's id is an event.
#[derive(Clone, Debug)]
pub(crate) struct Id {
    service: Service,
    /// A number for a dead letter, a string for an event.
    key: Value,
}

impl Id {
    pub(crate) fn of_event(service: &str, event: Uuid) -> Result<Self, String> {
        Ok(Self { service: service.parse()?, key: json!(event) })
    }

    pub(crate) fn service(&self) -> Service {
        self.service
    }

    pub(crate) fn is_dead_letter(&self) -> bool {
        self.key.is_number()
    }

    fn collection(&self) -> Collection {
        if self.is_dead_letter() { Collection::DeadLetters } else { Collection::ParkedEvents }
    }
}

impl FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "`{text}` is not an id: expected a service and a number or an event's id, such as inventory/3"
            )
        };
        let (service, key) = text.split_once('/').ok_or_else(invalid)?;
        let service = service.parse().map_err(|_| invalid())?;
        let number = key.parse::<i64>().ok().map(|id| json!(id));
        let key = number.or_else(|| key.parse::<Uuid>().ok().map(|id| json!(id)));
        Ok(Self { service, key: key.ok_or_else(invalid)? })
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.service.name(), text(&self.key))
    }
}

/// What a replay is about.
#[derive(Debug)]
pub(crate) enum Which {
    Ids(Vec<Id>),
    All,
    /// What was set aside from one time on, before another: `2026-01-31T12:00:00Z`.
    Between(Option<String>, Option<String>),
}

/// A replay.
#[derive(Debug)]
pub(crate) struct Selection {
    pub(crate) which: Which,
    /// At this service only.
    pub(crate) at: Option<Service>,
    /// Events that were published already, instead of what is set aside.
    pub(crate) published: bool,
    /// Also what is too old: consumers may have erased their records of it, and apply it a second time.
    pub(crate) force: bool,
    /// Only say what a replay would do.
    pub(crate) dry_run: bool,
}

impl Selection {
    /// Everywhere, as far as it is safe.
    pub(crate) fn of(which: Which) -> Self {
        Self { which, at: None, published: false, force: false, dry_run: false }
    }
}

/// Calls `each` with what waits for an operator, oldest first within a service; with `resolved_too`, also with the dead letters
/// that are resolved. Ends when `each` has enough.
pub(crate) async fn list(
    system: &RunningSystem,
    at: Option<Service>,
    resolved_too: bool,
    mut each: impl FnMut(Id, &Value) -> ControlFlow<()>,
) -> Result<()> {
    let services = Service::ALL.into_iter().filter(|service| at.is_none_or(|at| at == *service));
    for (service, collection) in
        services.flat_map(|service| Collection::WAITING.map(|collection| (service, collection)))
    {
        // A parked event that is resolved is an ordinary event again, or a row of `outbox_discarded`.
        let resolved = if resolved_too && collection == Collection::DeadLetters { "&all=true" } else { "" };
        let mut after = json!(0);
        for _ in 0..MAX_PAGES {
            let path = format!("{}?limit=100&after={after}{resolved}", collection.path());
            let page = system.admin(service.name(), &path, None).await?;
            for item in page["items"].as_array().into_iter().flatten() {
                let id = Id { service, key: item[collection.id_field()].clone() };
                if each(id, item).is_break() {
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
    let path = format!("{}/{}", id.collection().path(), text(&id.key));
    system.admin(id.service.name(), &path, None).await
}

/// Publishes events again, and applies dead letters again. Calls `each` with every outcome as it is known: if the replay fails
/// half-way, the first ones were replayed.
pub(crate) async fn replay(
    system: &RunningSystem,
    selection: &Selection,
    mut each: impl FnMut(Id, &Value),
) -> Result<()> {
    let collections =
        if selection.published { vec![Collection::PublishedEvents] } else { Collection::WAITING.to_vec() };
    let pairs: Vec<_> = Service::ALL
        .into_iter()
        .flat_map(|service| collections.iter().map(move |of| (service, *of)))
        .collect();
    for (service, collection) in pairs {
        let mut body = json!({ "force": selection.force, "dryRun": selection.dry_run });
        match &selection.which {
            Which::Ids(ids) => {
                let letters = collection == Collection::DeadLetters;
                let here = ids.iter().filter(|id| id.service == service && id.is_dead_letter() == letters);
                body["ids"] = here.map(|id| id.key.clone()).collect();
                if body["ids"] == json!([]) {
                    continue;
                }
            }
            _ if selection.at.is_some_and(|at| at != service) => continue,
            Which::All => body["all"] = json!(true),
            Which::Between(from, to) => {
                body["from"] = json!(from);
                body["to"] = json!(to);
            }
        }
        body["after"] = json!(0);
        for _ in 0..MAX_PAGES {
            let path = format!("{}/replay", collection.path());
            let page = system.admin(service.name(), &path, Some(&body)).await?;
            for item in page["items"].as_array().into_iter().flatten() {
                each(Id { service, key: item[collection.id_field()].clone() }, item);
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
    let service = id.service.name();
    if id.is_dead_letter() {
        let body = json!({ "ids": [id.key], "note": note });
        let answer = system.admin(service, "/admin/dead-letters/discard", Some(&body)).await?;
        ensure!(answer["untouched"] == json!([]), "{id} does not wait for an operator, or does not exist");
        return Ok(answer);
    }
    let path = format!("/admin/parked/{}/discard", text(&id.key));
    system.admin(service, &path, Some(&json!({ "note": note, "acceptGap": accept_gap }))).await
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
