//! What must never happen, looked at in every step.

use std::collections::{BTreeMap, BTreeSet};

use events::Event;
use uuid::Uuid;

use crate::{outbox_rows::Row, world::SERVICES};

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Whether something happened that must not; otherwise something did not happen that must.
    pub safety: bool,
    /// Which promise, and how it was broken.
    pub what: String,
}

struct Known {
    aggregate: Uuid,
    version: i32,
    body: Vec<u8>,
}

/// Keeps books of its own, apart from those of the store, the queues and the inboxes.
#[derive(Default)]
pub(crate) struct Judge {
    events: BTreeMap<Uuid, Known>,
    /// Per aggregate, the ids by version: version 1 stands first.
    histories: BTreeMap<Uuid, Vec<Uuid>>,
    enqueued: [BTreeSet<Uuid>; SERVICES],
    applied: [BTreeSet<Uuid>; SERVICES],
    set_aside: [BTreeSet<Uuid>; SERVICES],
    /// The last version whose effect was applied in its turn.
    last_applied: [BTreeMap<Uuid, i32>; SERVICES],
    marked: BTreeSet<Uuid>,
    pub(crate) duplicates: usize,
    /// How many second copies of an event the faults that met it explain.
    allowed_duplicates: BTreeMap<Uuid, usize>,
    copies: BTreeMap<Uuid, usize>,
    pub(crate) violation: Option<Violation>,
}

impl Judge {
    pub(crate) fn broken(&mut self, safety: bool, what: impl Into<String>) {
        // The first one tells most: the others follow from it.
        self.violation.get_or_insert_with(|| Violation { safety, what: what.into() });
    }

    pub(crate) fn events(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn published(&self) -> usize {
        self.marked.len()
    }

    pub(crate) fn committed(&mut self, row: &Row) {
        let known = Known { aggregate: row.aggregate, version: row.version, body: row.body.clone() };
        self.events.insert(row.id, known);
        self.histories.entry(row.aggregate).or_default().push(row.id);
    }

    /// A fault has struck while these events were in somebody's hands: each may be published once more.
    pub(crate) fn allow_duplicates(&mut self, in_flight: impl IntoIterator<Item = Uuid>) {
        for id in in_flight {
            *self.allowed_duplicates.entry(id).or_default() += 1;
        }
    }

    pub(crate) fn enqueued(&mut self, id: Uuid, body: &[u8], into: &[usize]) {
        let Some(known) = self.events.get(&id) else {
            return self.broken(true, format!("I2: {id} was published and never committed"));
        };
        if known.body != body {
            return self.broken(true, format!("I2: {id} was published with other bytes than were written"));
        }
        let before = self.histories[&known.aggregate].iter().take_while(|other| **other != id).copied();
        let before: Vec<_> = before.collect();
        let copies = self.copies.entry(id).or_default();
        *copies += 1;
        let (seconds, explained) =
            (*copies - 1, self.allowed_duplicates.get(&id).copied().unwrap_or_default());
        self.duplicates += usize::from(seconds > 0);
        if seconds > explained {
            let what =
                format!("I7: {id} was published {seconds} times too often, and faults explain {explained}");
            self.broken(true, what);
        }
        for service in into {
            if let Some(missing) = before.iter().find(|id| !self.enqueued[*service].contains(id)) {
                self.broken(true, format!("I6: {id} was published before {missing} of the same aggregate"));
            }
            self.enqueued[*service].insert(id);
        }
    }

    pub(crate) fn marked_published(&mut self, id: Uuid) {
        self.marked.insert(id);
        if let Some(service) = self.enqueued.iter().position(|queue| !queue.contains(&id)) {
            self.broken(
                true,
                format!("I3: {id} is marked as published, and service {service} was not sent it"),
            );
        }
    }

    pub(crate) fn acknowledged(&mut self, service: usize, id: Uuid) {
        if !self.is_settled(service, id) {
            self.broken(
                true,
                format!("I3: service {service} acknowledged {id}, whose effect is not committed"),
            );
        }
    }

    /// It lies in the dead letters of this service. Whether its effect comes, and when, is open from now on.
    pub(crate) fn set_aside(&mut self, service: usize, id: Uuid) {
        self.set_aside[service].insert(id);
    }

    pub(crate) fn applied(&mut self, service: usize, event: &Event) {
        let id = event.id;
        let Some(known) = self.events.get(&id) else {
            return self
                .broken(true, format!("I5: service {service} applied {id}, which was never committed"));
        };
        if !self.applied[service].insert(id) {
            return self.broken(true, format!("I4: service {service} applied {id} twice"));
        }
        let (aggregate, version) = (known.aggregate, known.version);
        if self.set_aside[service].contains(&id) {
            return;
        }
        let before = self.histories[&aggregate].iter().take_while(|other| **other != id);
        let missing = before.copied().find(|other| !self.is_settled(service, *other));
        let last = self.last_applied[service].entry(aggregate).or_default();
        let overtaken = *last > version;
        *last = version.max(*last);
        if let Some(missing) = missing {
            self.broken(
                true,
                format!("I6: service {service} applied {id} before {missing} of its aggregate"),
            );
        } else if overtaken {
            self.broken(
                true,
                format!("I6: service {service} applied {id} after a later event of its aggregate"),
            );
        }
    }

    /// Applied, or set aside with a reason.
    pub(crate) fn is_settled(&self, service: usize, id: Uuid) -> bool {
        self.applied[service].contains(&id) || self.set_aside[service].contains(&id)
    }

    pub(crate) fn set_aside_count(&self) -> usize {
        self.set_aside.iter().map(BTreeSet::len).sum()
    }
}
