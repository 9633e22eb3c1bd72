//! The checks at the end of a level: each compares what was committed with what arrived, and returns what broke.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use anyhow::Result;
use serde_json::Value;
use uuid::Uuid;

use crate::{
    outbox::{Event, WANTED},
    stage::Stage,
    verdict::{Breach, Promise},
};

/// A copy that was sent before the mark has arrived after this time.
const IN_FLIGHT: Duration = Duration::from_secs(2);

/// All checks: each level is judged by each of them.
pub(crate) async fn all(stage: &mut Stage<'_>) -> Result<Vec<Breach>> {
    let mut breaches = publication(stage).await?;
    breaches.extend(order(stage));
    breaches.extend(messages(stage));
    breaches.extend(identity(stage));
    breaches.extend(copies(stage));
    Ok(breaches)
}

/// Which events are lost, which are pending or not marked although they can be published, and what arrived and was never
/// committed.
async fn publication(stage: &mut Stage<'_>) -> Result<Vec<Breach>> {
    let pending = stage.outbox.pending().await?;
    let publishable: HashSet<_> = stage.outbox.publishable().map(|(event, _)| event.id).collect();
    let mut breaches = vec![];
    for (event, at) in &stage.outbox.committed {
        let (committed, age) = (stage.time(*at), at.elapsed().as_secs());
        let (promise, state) = match (pending.contains(&event.id), stage.arrivals.has(event.id)) {
            (false, true) => continue,
            (false, false) => {
                let why = match event.routing_key {
                    _ if stage.outbox.is_accepted(event) => "",
                    WANTED => "which the broker refuses, ",
                    _ => "which no queue wants, ",
                };
                (Promise::NothingIsLost, format!("{why}is marked as published, and has not arrived"))
            }
            (true, _) if !publishable.contains(&event.id) => continue,
            (true, false) => (Promise::EverythingIsPublished, format!("is still pending {age} s later")),
            (true, true) => {
                (Promise::EverythingIsMarked, format!("has arrived, and is pending {age} s later"))
            }
        };
        breaches.push(Breach::of(promise, event.id, format!("committed at {committed} {state}")));
    }
    // What was read before the last arrivals may be older than they are.
    let committed: HashSet<_> = stage.outbox.committed.iter().map(|(event, _)| event.id).collect();
    let record = stage.arrivals.record();
    for arrival in record.all.iter().filter(|arrival| !arrival.id.is_some_and(|id| committed.contains(&id))) {
        let what = format!("arrived at {}, and its commit has never succeeded", stage.time(arrival.at));
        breaches.push(Breach { promise: Promise::OnlyCommittedEvents, event: arrival.id, what });
    }
    Ok(breaches)
}

/// Compares the first arrivals of each aggregate's events with their versions. A copy that arrives later is no breach; an event
/// that should wait behind one that was refused is.
fn order(stage: &Stage<'_>) -> Vec<Breach> {
    let known: HashMap<_, _> = stage.outbox.committed.iter().map(|(event, _)| (event.id, event)).collect();
    let record = stage.arrivals.record();
    let mut first: Vec<_> = record.first.iter().map(|(id, position)| (*position, *id)).collect();
    first.sort_unstable();
    let (mut newest, mut breaches) = (HashMap::new(), vec![]);
    for (position, id) in first {
        let (Some(event), at) = (known.get(&id), record.all[position].at) else { continue };
        let (version, before) = newest.entry(event.aggregate).or_insert((event.version, at));
        if event.version < *version {
            let (arrived, before) = (stage.time(at), stage.time(*before));
            let what = format!(
                "version {} of aggregate {} arrived at {arrived}, after version {version} at {before}",
                event.version, event.aggregate
            );
            breaches.push(Breach::of(Promise::OrderOfEachAggregate, id, what));
        } else {
            (*version, *before) = (event.version, at);
        }
    }
    let publishable: HashSet<_> = stage.outbox.publishable().map(|(event, _)| event.id).collect();
    for (event, _) in stage.outbox.committed.iter().filter(|(event, _)| !publishable.contains(&event.id)) {
        if let Some(position) = record.first.get(&event.id) {
            let Event { version, aggregate, .. } = event;
            let at = stage.time(record.all[*position].at);
            let what = format!(
                "version {version} of aggregate {aggregate} arrived at {at}, and an older one is refused"
            );
            breaches.push(Breach::of(Promise::OrderOfEachAggregate, event.id, what));
        }
    }
    breaches
}

/// The copies that no fault explains: of an event that was marked before the first one, or of more than a tenth of the events
/// before they were marked. One may be published again because a confirm was slow.
fn copies(stage: &Stage<'_>) -> Vec<Breach> {
    let record = stage.arrivals.record();
    let (mut late, mut early) = (vec![], vec![]);
    for (position, arrival) in record.all.iter().enumerate() {
        let Some((id, marked)) = arrival.id.and_then(|id| Some((id, stage.calm.get(&id)?))) else { continue };
        if record.first.get(&id).is_none_or(|first| *first == position) {
            continue;
        }
        let is_late = arrival.at > *marked + IN_FLIGHT;
        let when = if is_late { "after it was marked" } else { "before it was marked" };
        let what = format!("arrived again at {}, {when}, without a fault before it", stage.time(arrival.at));
        let breach = Breach::of(Promise::NoNeedlessCopies, id, what);
        if is_late { late.push(breach) } else { early.push(breach) }
    }
    if early.len() * 10 > stage.calm.len() {
        late.extend(early);
    }
    late
}

/// Compares each message with its event.
fn messages(stage: &Stage<'_>) -> Vec<Breach> {
    let bodies: HashMap<Uuid, &str> =
        stage.outbox.committed.iter().map(|(event, _)| (event.id, event.payload.as_str())).collect();
    let mut breaches = vec![];
    for arrival in &stage.arrivals.record().all {
        let Some(id) = arrival.id else { continue };
        if !arrival.is_persistent {
            let what = format!("arrived at {} without delivery mode 2", stage.time(arrival.at));
            breaches.push(Breach::of(Promise::Persistent, id, what));
        }
        let written: Option<Value> = bodies.get(&id).and_then(|body| serde_json::from_str(body).ok());
        if written.is_some_and(|written| written != arrival.body) {
            let what = format!("arrived at {} with another body: {}", stage.time(arrival.at), arrival.body);
            breaches.push(Breach::of(Promise::BodyAsWritten, id, what));
        }
    }
    breaches
}

/// Compares the `message_id` of each arrival with its event's id.
fn identity(stage: &Stage<'_>) -> Vec<Breach> {
    let mut breaches = vec![];
    for arrival in &stage.arrivals.record().all {
        let Some(id) = arrival.id else { continue };
        if arrival.message_id.as_deref() != Some(&id.to_string()) {
            let (at, other) = (stage.time(arrival.at), arrival.message_id.as_deref().unwrap_or("none"));
            let what = format!("arrived at {at} with another id: {other}");
            breaches.push(Breach::of(Promise::SameIdInEachCopy, id, what));
        }
    }
    breaches
}
