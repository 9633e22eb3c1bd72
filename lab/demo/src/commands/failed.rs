//! `cargo demo failed`: what the three services have set aside. The outbox parks events, consumers set dead letters
//! aside.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::choice::Choice;
use crate::running_system::RunningSystem;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// Bounds the loops over pages, in case a service never answers with the last one.
const MAX_PAGES: usize = 1_000;

#[derive(Debug, Subcommand)]
pub(crate) enum FailedCommand {
    /// List what waits for an operator.
    List {
        /// At this service only: orders, inventory or billing.
        #[arg(long)]
        at: Option<Service>,
        /// Also the dead letters that are resolved.
        #[arg(long)]
        all: bool,
    },
    /// Show everything about one parked event or dead letter.
    Show {
        /// An id of the list, such as inventory/3.
        id: Id,
    },
    /// Publish parked events again, and apply dead letters again. Nothing is applied twice.
    Replay(Replay),
    /// Discard: a parked event is never published, a dead letter never applied.
    Discard {
        /// Ids of the list, such as inventory/3.
        #[arg(required = true)]
        ids: Vec<Id>,
        /// The reason. It is kept with the event or the dead letter.
        #[arg(long)]
        note: String,
        /// Required for a parked event: consumers will see a gap in its order's sequence.
        #[arg(long)]
        accept_gap: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// Ids of the list, such as inventory/3 (a dead letter) or orders/0190… (a parked event).
    ids: Vec<Id>,
    /// Everything that waits.
    #[arg(long, conflicts_with_all = ["ids", "from", "to"])]
    all: bool,
    /// What was set aside at this time or later: 2026-01-31T12:00:00Z.
    #[arg(long, conflicts_with = "ids")]
    from: Option<String>,
    /// What was set aside before this time.
    #[arg(long, conflicts_with = "ids")]
    to: Option<String>,
    /// At this service only: orders, inventory or billing.
    #[arg(long)]
    at: Option<Service>,
    /// Publish events again that were published already, selected by their ids or by the time of publishing.
    #[arg(long, conflicts_with = "all")]
    published: bool,
    /// Also what is too old: consumers may have erased their records of it, and apply it a second time.
    #[arg(long)]
    force: bool,
    /// Only say what a replay would do.
    #[arg(long)]
    dry_run: bool,
}

/// A service that sets events and messages aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Orders,
    Inventory,
    Billing,
}

impl Service {
    const ALL: [Self; 3] = [Self::Orders, Self::Inventory, Self::Billing];

    fn name(self) -> &'static str {
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
enum Collection {
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
    fn is_dead_letter(&self) -> bool {
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

pub(crate) async fn run(choice: Choice, command: FailedCommand, terminal: &Terminal) -> Result<Verdict> {
    let system = RunningSystem::require(choice).await?;
    match command {
        FailedCommand::List { at, all } => list(&system, at, all, terminal).await,
        FailedCommand::Show { id } => {
            let path = format!("{}/{}", id.collection().path(), text(&id.key));
            let item = system.admin(id.service.name(), &path, None).await?;
            if !terminal.json() {
                terminal.print(serde_json::to_string_pretty(&item)?);
            }
            terminal.document(&item)?;
            Ok(Verdict::Held)
        }
        FailedCommand::Replay(options) => replay(&system, options, terminal).await,
        FailedCommand::Discard { ids, note, accept_gap } => {
            discard(&system, &ids, &note, accept_gap, terminal).await
        }
    }
}

async fn list(
    system: &RunningSystem,
    at: Option<Service>,
    resolved_too: bool,
    terminal: &Terminal,
) -> Result<Verdict> {
    let mut found = Vec::new();
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
                terminal.print(line(&id, item));
                found.push(json!({ "id": id.to_string(), "at": service.name(), "item": item }));
            }
            after = page["next"].clone();
            if after.is_null() {
                break;
            }
        }
    }
    if found.is_empty() {
        terminal.print("Nothing is set aside.");
    }
    terminal.document(&json!({ "setAside": found }))?;
    Ok(Verdict::Held)
}

/// One line of the list: id, time, event type, reason, resolution, and how many events wait behind it.
fn line(id: &Id, item: &Value) -> String {
    let either = |one: &str, other: &str| text(if item[one].is_null() { &item[other] } else { &item[one] });
    let (since, what) = (either("parkedAt", "arrivedAt"), either("eventType", "messageId"));
    let resolution = match text(&item["resolution"]) {
        none if none.is_empty() => none,
        resolution => format!(" ({resolution})"),
    };
    let behind = match item["waitingBehind"].as_i64() {
        None | Some(0) => String::new(),
        Some(count) => format!(" ({count} behind it)"),
    };
    format!(
        "  {:<44}  {since:.19}  {what:<14.40}  {}{resolution}{behind}",
        id.to_string(),
        either("lastError", "detail")
    )
}

async fn replay(system: &RunningSystem, options: Replay, terminal: &Terminal) -> Result<Verdict> {
    let period = options.from.is_some() || options.to.is_some();
    let by_id = !options.ids.is_empty();
    ensure!(options.all || period || by_id, "nothing is selected: give ids, --all, or --from and --to");
    ensure!(
        !options.published || !options.ids.iter().any(Id::is_dead_letter),
        "a number is a dead letter: --published takes the ids of events, such as orders/0190…"
    );
    let mut results = Vec::new();
    let collections =
        if options.published { vec![Collection::PublishedEvents] } else { Collection::WAITING.to_vec() };
    for (service, collection) in
        Service::ALL.into_iter().flat_map(|service| collections.iter().map(move |it| (service, *it)))
    {
        let belongs = |id: &&Id| {
            id.service == service && id.is_dead_letter() == (collection == Collection::DeadLetters)
        };
        let ids: Vec<_> = options.ids.iter().filter(belongs).map(|id| id.key.clone()).collect();
        let selected = if by_id { !ids.is_empty() } else { options.at.is_none_or(|at| at == service) };
        if !selected {
            continue;
        }
        let mut after = json!(0);
        for _ in 0..MAX_PAGES {
            let mut body = json!({ "force": options.force, "dryRun": options.dry_run, "after": after });
            if by_id {
                body["ids"] = json!(ids);
            } else if options.all {
                body["all"] = json!(true);
            } else {
                body["from"] = json!(options.from);
                body["to"] = json!(options.to);
            }
            let page =
                system.admin(service.name(), &format!("{}/replay", collection.path()), Some(&body)).await?;
            for item in page["items"].as_array().into_iter().flatten() {
                let id = Id { service, key: item[collection.id_field()].clone() };
                let outcome = text(&item["outcome"]);
                terminal.print(format!("  {:<44}  {outcome}  {}", id.to_string(), explain(&outcome, item)));
                results.push(json!({ "id": id.to_string(), "outcome": outcome, "detail": item["detail"] }));
            }
            after = page["next"].clone();
            if after.is_null() {
                break;
            }
        }
    }
    if results.is_empty() {
        terminal.print("Nothing was selected.");
    }
    let resolved = |result: &&Value| {
        matches!(
            result["outcome"].as_str(),
            Some("pending" | "applied" | "unchanged" | "would-be-pending" | "would-be-applied")
        )
    };
    let unresolved = results.len() - results.iter().filter(resolved).count();
    terminal.document(&json!({ "replayed": results, "unresolved": unresolved }))?;
    // What is still set aside breaks no promise, and is not repaired.
    Ok(if unresolved == 0 { Verdict::Held } else { Verdict::Inconclusive })
}

/// The meaning of an outcome.
fn explain(outcome: &str, item: &Value) -> String {
    match outcome {
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

async fn discard(
    system: &RunningSystem,
    ids: &[Id],
    note: &str,
    accept_gap: bool,
    terminal: &Terminal,
) -> Result<Verdict> {
    let mut answers = Vec::new();
    for id in ids {
        let service = id.service.name();
        let answer = if id.is_dead_letter() {
            let body = json!({ "ids": [id.key], "note": note });
            let answer = system.admin(service, "/admin/dead-letters/discard", Some(&body)).await?;
            ensure!(
                answer["untouched"] == json!([]),
                "{id} does not wait for an operator, or does not exist"
            );
            answer
        } else {
            let path = format!("/admin/parked/{}/discard", text(&id.key));
            system.admin(service, &path, Some(&json!({ "note": note, "acceptGap": accept_gap }))).await?
        };
        terminal.print(match answer["gap"].as_i64() {
            Some(gap) => format!(
                "  {id}  discarded: version {gap} of {} is never published; published after the gap: {}",
                text(&answer["aggregateId"]),
                answer["follow"],
            ),
            None => format!("  {id}  discarded; its bytes are kept"),
        });
        answers.push(json!({ "id": id.to_string(), "answer": answer }));
    }
    terminal.document(&json!({ "discarded": answers }))?;
    Ok(Verdict::Held)
}

/// A value without quotes. Null is an empty text.
fn text(value: &Value) -> String {
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
