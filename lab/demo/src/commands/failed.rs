//! `cargo demo failed`: what the three services have set aside. The outbox parks events, consumers set dead letters
//! aside.

use std::ops::ControlFlow;

use anyhow::Result;
use clap::Subcommand;
use serde_json::{Value, json};

use crate::Verdict;
use crate::choice::Choice;
use crate::operator_client::{self, Id, Replay, explain, text};
use crate::part::SERVICES;
use crate::running_system::RunningSystem;
use crate::terminal::Terminal;

#[derive(Debug, Subcommand)]
pub(crate) enum FailedCommand {
    /// List what waits for an operator.
    List {
        /// At this service only.
        #[arg(long, value_parser = SERVICES)]
        at: Option<String>,
        /// Also the dead letters that are resolved.
        #[arg(long)]
        all: bool,
    },
    /// Show everything about one parked event or dead letter.
    Show {
        /// An id of the list, for example inventory/3.
        id: Id,
    },
    /// Publish parked events again, and apply dead letters again. Nothing is applied twice.
    Replay(Replay),
    /// Discard: a parked event is never published, a dead letter never applied.
    Discard {
        /// Ids of the list, for example inventory/3.
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

pub(crate) async fn run(choice: Choice, command: FailedCommand, terminal: &Terminal) -> Result<Verdict> {
    let system = RunningSystem::require(choice).await?;
    match command {
        FailedCommand::List { at, all } => list(&system, at.as_deref(), all, terminal).await,
        FailedCommand::Show { id } => {
            let item = operator_client::show(&system, &id).await?;
            if !terminal.json() {
                terminal.print(serde_json::to_string_pretty(&item)?);
            }
            terminal.document(&item)?;
            Ok(Verdict::Held)
        }
        FailedCommand::Replay(selected) => replay(&system, &selected, terminal).await,
        FailedCommand::Discard { ids, note, accept_gap } => {
            discard(&system, &ids, &note, accept_gap, terminal).await
        }
    }
}

async fn list(
    system: &RunningSystem,
    at: Option<&str>,
    resolved_too: bool,
    terminal: &Terminal,
) -> Result<Verdict> {
    let mut found = Vec::new();
    operator_client::list(system, at, resolved_too, |id, item| {
        terminal.print(line(&id, item));
        found.push(json!({ "id": id.to_string(), "at": id.service, "item": item }));
        ControlFlow::Continue(())
    })
    .await?;
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

async fn replay(system: &RunningSystem, selected: &Replay, terminal: &Terminal) -> Result<Verdict> {
    let mut results = Vec::new();
    operator_client::replay(system, selected, |id, item| {
        let outcome = text(&item["outcome"]);
        terminal.print(format!("  {:<44}  {outcome}  {}", id.to_string(), explain(item)));
        results.push(json!({ "id": id.to_string(), "outcome": outcome, "detail": item["detail"] }));
    })
    .await?;
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

async fn discard(
    system: &RunningSystem,
    ids: &[Id],
    note: &str,
    accept_gap: bool,
    terminal: &Terminal,
) -> Result<Verdict> {
    let mut answers = Vec::new();
    for id in ids {
        let answer = operator_client::discard(system, id, note, accept_gap).await?;
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
