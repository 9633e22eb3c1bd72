//! `cargo demo aside`: what was set aside, wherever it lies: events that the outbox has parked, and dead letters.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::choice::Choice;
use crate::shop::Shop;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// More pages than this are a system in which something else is wrong.
const MOST_PAGES: usize = 1_000;

#[derive(Debug, Subcommand)]
pub(crate) enum Aside {
    /// What waits for an operator.
    List {
        /// Of this service only: orders, inventory or billing.
        #[arg(long)]
        at: Option<Place>,
        /// Also what was settled before.
        #[arg(long)]
        all: bool,
    },
    /// All that is known of one.
    Show {
        /// As in the list, such as inventory/3.
        id: Id,
    },
    /// Try it again: a parked event is published, a dead letter is applied. Nothing is applied twice.
    Replay(Replay),
    /// Give it up.
    Discard {
        /// As in the list, such as inventory/3.
        #[arg(required = true)]
        ids: Vec<Id>,
        /// Why: kept for those who find the gap.
        #[arg(long)]
        note: String,
        /// For a parked event: consumers will see a gap in its order's sequence.
        #[arg(long)]
        accept_gap: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// As in the list, such as inventory/3 (a dead letter) or orders/0190… (a parked event).
    ids: Vec<Id>,
    /// Everything that waits.
    #[arg(long, conflicts_with_all = ["ids", "from", "to"])]
    all: bool,
    /// What was set aside at this moment or later: 2026-01-31T12:00:00Z.
    #[arg(long, conflicts_with = "ids")]
    from: Option<String>,
    /// What was set aside before this moment.
    #[arg(long, conflicts_with = "ids")]
    to: Option<String>,
    /// At this service only: orders, inventory or billing.
    #[arg(long)]
    at: Option<Place>,
    /// Events that have been published already are published again: by their ids, or by a period.
    #[arg(long, conflicts_with = "all")]
    published: bool,
    /// Also what is older than the consumers' memory can be trusted with: it may be applied a second time.
    #[arg(long)]
    force: bool,
}

/// Whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Orders,
    Inventory,
    Billing,
}

const PLACES: [Place; 3] = [Place::Orders, Place::Inventory, Place::Billing];

impl Place {
    fn name(self) -> &'static str {
        match self {
            Self::Orders => "orders",
            Self::Inventory => "inventory",
            Self::Billing => "billing",
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        PLACES.into_iter().find(|place| place.name() == name).ok_or("orders, inventory or billing".into())
    }
}

/// Where the things of a service lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shelf {
    /// Events that its relay could not publish.
    Parked,
    /// Messages that its consumer could not apply.
    DeadLetters,
    /// Events that were published, and are to be published again.
    Published,
}

impl Shelf {
    /// What may wait there for an operator.
    const WAITING: [Self; 2] = [Self::Parked, Self::DeadLetters];

    fn path(self) -> &'static str {
        match self {
            Self::Parked => "/admin/parked",
            Self::DeadLetters => "/admin/dead-letters",
            Self::Published => "/admin/published",
        }
    }

    /// What names one of them.
    fn key(self) -> &'static str {
        if self == Self::DeadLetters { "id" } else { "eventId" }
    }
}

/// A place and what the thing is called there: `inventory/3` is a dead letter, `orders/` and an event's id is an event.
#[derive(Clone, Debug)]
pub(crate) struct Id {
    place: Place,
    /// As its service takes it: a number, or a text.
    key: Value,
}

impl Id {
    fn shelf(&self) -> Shelf {
        if self.key.is_number() { Shelf::DeadLetters } else { Shelf::Parked }
    }
}

impl FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is none: a service and a number or an event's id, such as inventory/3");
        let (place, key) = text.split_once('/').ok_or_else(wrong)?;
        let place = place.parse().map_err(|_| wrong())?;
        let number = key.parse::<i64>().ok().map(|id| json!(id));
        let key = number.or_else(|| key.parse::<Uuid>().ok().map(|id| json!(id)));
        Ok(Self { place, key: key.ok_or_else(wrong)? })
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.place.name(), text(&self.key))
    }
}

pub(crate) async fn run(choice: Choice, what: Aside, terminal: &Terminal) -> Result<Verdict> {
    let shop = Shop::find(choice.wanted()).await?.context(super::up::NOTHING_RUNS)?;
    match what {
        Aside::List { at, all } => list(&shop, at, all, terminal).await,
        Aside::Show { id } => {
            let path = format!("{}/{}", id.shelf().path(), text(&id.key));
            let found = shop.admin(id.place.name(), &path, None).await?;
            if !terminal.json() {
                terminal.say(serde_json::to_string_pretty(&found)?);
            }
            terminal.document(&found)?;
            Ok(Verdict::Held)
        }
        Aside::Replay(asked) => replay(&shop, asked, terminal).await,
        Aside::Discard { ids, note, accept_gap } => discard(&shop, &ids, &note, accept_gap, terminal).await,
    }
}

async fn list(shop: &Shop, at: Option<Place>, settled_too: bool, terminal: &Terminal) -> Result<Verdict> {
    let mut found = Vec::new();
    for (place, shelf) in chosen(at).flat_map(|place| Shelf::WAITING.map(|shelf| (place, shelf))) {
        // What was parked and is settled is an event like any other, or in `outbox_discarded`: not in this list.
        let settled = if settled_too && shelf == Shelf::DeadLetters { "&all=true" } else { "" };
        let mut after = json!(0);
        for _ in 0..MOST_PAGES {
            let path = format!("{}?limit=100&after={after}{settled}", shelf.path());
            let page = shop.admin(place.name(), &path, None).await?;
            for item in page["items"].as_array().into_iter().flatten() {
                let id = Id { place, key: item[shelf.key()].clone() };
                terminal.say(line(&id, item));
                found.push(json!({ "id": id.to_string(), "at": place.name(), "item": item }));
            }
            after = page["next"].clone();
            if after.is_null() {
                break;
            }
        }
    }
    if found.is_empty() {
        terminal.say("Nothing was set aside.");
    }
    terminal.document(&json!({ "aside": found }))?;
    Ok(Verdict::Held)
}

/// One line of the list: which, since when, what, and why.
fn line(id: &Id, item: &Value) -> String {
    let or = |one: &str, other: &str| text(if item[one].is_null() { &item[other] } else { &item[one] });
    let (since, what) = (or("parkedAt", "arrivedAt"), or("eventType", "messageId"));
    let settled = if item["resolution"].is_string() {
        format!(" ({})", text(&item["resolution"]))
    } else {
        String::new()
    };
    format!("  {:<44}  {since:.19}  {what:<14.40}  {}{settled}", id.to_string(), or("lastError", "detail"))
}

async fn replay(shop: &Shop, asked: Replay, terminal: &Terminal) -> Result<Verdict> {
    let period = asked.from.is_some() || asked.to.is_some();
    ensure!(asked.all || period || !asked.ids.is_empty(), "which? Ids, --all, or --from and --to");
    let number = asked.ids.iter().find(|id| asked.published && id.shelf() == Shelf::DeadLetters);
    ensure!(
        number.is_none(),
        "a number is a dead letter: --published takes ids of events, such as orders/0190…"
    );
    let mut answers = Vec::new();
    let shelves = if asked.published { vec![Shelf::Published] } else { Shelf::WAITING.to_vec() };
    for (place, shelf) in
        PLACES.into_iter().flat_map(|place| shelves.iter().map(move |shelf| (place, *shelf)))
    {
        let here = |id: &&Id| {
            id.place == place && (id.shelf() == Shelf::DeadLetters) == (shelf == Shelf::DeadLetters)
        };
        let ids: Vec<_> = asked.ids.iter().filter(here).map(|id| id.key.clone()).collect();
        let by_id = !asked.ids.is_empty();
        let meant = if by_id { !ids.is_empty() } else { asked.at.is_none_or(|at| at == place) };
        if !meant {
            continue;
        }
        let (path, key) = (shelf.path(), shelf.key());
        let mut after = json!(0);
        for _ in 0..MOST_PAGES {
            let mut body = json!({ "force": asked.force, "after": after });
            if by_id {
                body["ids"] = json!(ids);
            } else if asked.all {
                body["all"] = json!(true);
            } else {
                body["from"] = json!(asked.from);
                body["to"] = json!(asked.to);
            }
            let page = shop.admin(place.name(), &format!("{path}/replay"), Some(&body)).await?;
            for item in page["items"].as_array().into_iter().flatten() {
                let id = Id { place, key: item[key].clone() };
                let outcome = text(&item["outcome"]);
                terminal.say(format!("  {:<44}  {outcome}  {}", id.to_string(), said(&outcome, item)));
                answers.push(json!({ "id": id.to_string(), "outcome": outcome, "detail": item["detail"] }));
            }
            after = page["next"].clone();
            if after.is_null() {
                break;
            }
        }
    }
    if answers.is_empty() {
        terminal.say("Nothing of that kind was set aside.");
    }
    let settled =
        |answer: &&Value| matches!(answer["outcome"].as_str(), Some("owed" | "applied" | "unchanged"));
    let unsettled = answers.len() - answers.iter().filter(settled).count();
    terminal.document(&json!({ "replayed": answers, "unsettled": unsettled }))?;
    // Nothing is broken by what is still set aside, and nothing is mended either.
    Ok(if unsettled == 0 { Verdict::Held } else { Verdict::Inconclusive })
}

/// What an outcome means, for people.
fn said(outcome: &str, item: &Value) -> String {
    match outcome {
        "owed" => "it is published again now".into(),
        "applied" => "its effect is there now".into(),
        "unchanged" => "it was applied before: effects are unchanged".into(),
        "too-old" => {
            "older than the consumers' memory can be trusted with: --force replays it all the same".into()
        }
        "discarded" => "it was given up: --force replays it all the same".into(),
        "not-there" | "no-such-letter" => "there is none".into(),
        _ => text(&item["detail"]),
    }
}

async fn discard(
    shop: &Shop,
    ids: &[Id],
    note: &str,
    accept_gap: bool,
    terminal: &Terminal,
) -> Result<Verdict> {
    let mut answers = Vec::new();
    for id in ids {
        let answer = if id.shelf() == Shelf::Parked {
            let path = format!("/admin/parked/{}/discard", text(&id.key));
            shop.admin(id.place.name(), &path, Some(&json!({ "note": note, "acceptGap": accept_gap })))
                .await?
        } else {
            let body = json!({ "ids": [id.key], "note": note });
            let answer = shop.admin(id.place.name(), "/admin/dead-letters/discard", Some(&body)).await?;
            ensure!(answer["untouched"] == json!([]), "{id} does not wait: it is settled, or there is none");
            answer
        };
        terminal.say(match answer["gap"].as_i64() {
            Some(gap) => format!(
                "  {id}  discarded: version {gap} of {} is missing for good; published after the gap: {}",
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

fn chosen(at: Option<Place>) -> impl Iterator<Item = Place> {
    PLACES.into_iter().filter(move |place| at.is_none_or(|at| at == *place))
}

/// A text without its quotes; nothing for nothing.
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
    fn an_id_names_its_place() {
        for good in ["inventory/3", "orders/12", "billing/0190a1b2-0000-7000-8000-000000000001"] {
            assert_eq!(good.parse::<Id>().unwrap().to_string(), good);
        }
        for bad in ["", "3", "inventory", "inventory/x", "orders/", "warehouse/3"] {
            assert!(bad.parse::<Id>().is_err(), "{bad}");
        }
    }
}
