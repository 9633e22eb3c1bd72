//! The invariants, checked at every step.

use std::collections::{BTreeMap, BTreeSet};

use events::Event;
use uuid::Uuid;

use crate::{history::SERVICES, outbox_table::Row};

/// Records what happens to each event, independently of the store, the queues and the inboxes, and reports the first
/// violated invariant.
#[derive(Default)]
pub(crate) struct Judge {
    /// The rows of the committed events, as they were at the commit.
    events: BTreeMap<Uuid, Row>,
    /// The event ids of each aggregate, ordered by version.
    ids_by_version: BTreeMap<Uuid, Vec<Uuid>>,
    enqueued: [BTreeSet<Uuid>; SERVICES],
    applied: [BTreeSet<Uuid>; SERVICES],
    set_aside: [BTreeSet<Uuid>; SERVICES],
    /// The events of `set_aside` that the broker moved to a dead-letter queue, so that later events do not wait behind them.
    by_broker: [BTreeSet<Uuid>; SERVICES],
    /// For each aggregate, the last version that was applied.
    last_applied: [BTreeMap<Uuid, i32>; SERVICES],
    marked_published: BTreeSet<Uuid>,
    pub(crate) duplicates: usize,
    /// For each event, how many duplicates the faults explain that affected it.
    allowed_duplicates: BTreeMap<Uuid, usize>,
    copies: BTreeMap<Uuid, usize>,
    /// The first violation. It begins with the number of the invariant, and says how it was violated.
    pub(crate) violation: Option<String>,
}

impl Judge {
    /// Keeps the first violation: later ones are often its consequences.
    pub(crate) fn violate(&mut self, message: impl Into<String>) {
        self.violation.get_or_insert_with(|| message.into());
    }

    pub(crate) fn event_count(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn published_count(&self) -> usize {
        self.marked_published.len()
    }

    pub(crate) fn set_aside_count(&self) -> usize {
        self.set_aside.iter().map(BTreeSet::len).sum()
    }

    /// Records a committed event.
    pub(crate) fn committed(&mut self, row: &Row) {
        self.events.insert(row.id, row.clone());
        self.ids_by_version.entry(row.aggregate).or_default().push(row.id);
    }

    /// Records that a fail-over lost a committed event. Checks I2: nobody may have received it.
    pub(crate) fn lost(&mut self, row: &Row) {
        if self.copies.contains_key(&row.id) {
            self.violate(format!("I2: {} was published, and a fail-over lost its event", row.id));
        }
        self.events.remove(&row.id);
        self.ids_by_version.entry(row.aggregate).or_default().retain(|id| *id != row.id);
    }

    /// Allows one more copy of each of these events: a fault was injected while they were in flight.
    pub(crate) fn allow_duplicates(&mut self, in_flight: impl IntoIterator<Item = Uuid>) {
        for id in in_flight {
            *self.allowed_duplicates.entry(id).or_default() += 1;
        }
    }

    /// Records that the broker put a message into the queues of these services. Checks I2, I6 and I7.
    pub(crate) fn enqueued(&mut self, id: Uuid, body: &[u8], services: &[usize]) {
        let Some(record) = self.events.get(&id) else {
            return self.violate(format!("I2: {id} was published, but its event was never committed"));
        };
        if record.body != body {
            return self.violate(format!("I2: {id} was published with other bytes than were committed"));
        }
        let older: Vec<_> = self.ids_by_version[&record.aggregate]
            .iter()
            .take_while(|other| **other != id)
            .copied()
            .collect();
        let copies = self.copies.entry(id).or_default();
        *copies += 1;
        let duplicates = *copies - 1;
        let explained = self.allowed_duplicates.get(&id).copied().unwrap_or_default();
        self.duplicates += usize::from(duplicates > 0);
        if duplicates > explained {
            self.violate(format!(
                "I7: {id} has {duplicates} duplicates, and the injected faults explain {explained}"
            ));
        }
        for service in services {
            if let Some(missing) = older.iter().find(|id| !self.enqueued[*service].contains(id)) {
                self.violate(format!("I6: {id} was published before {missing} of the same aggregate"));
            }
            self.enqueued[*service].insert(id);
        }
    }

    /// Records that a relay committed the mark "published". Checks I3.
    pub(crate) fn marked_published(&mut self, id: Uuid) {
        self.marked_published.insert(id);
        if let Some(service) = self.enqueued.iter().position(|queue| !queue.contains(&id)) {
            self.violate(format!(
                "I3: {id} is marked as published, but the queue of service {service} never received it"
            ));
        }
    }

    /// Records that the broker received an acknowledgement. Checks I3.
    pub(crate) fn acknowledged(&mut self, service: usize, id: Uuid) {
        if !self.is_settled(service, id) {
            self.violate(format!("I3: service {service} acknowledged {id} before its effect was committed"));
        }
    }

    /// Records that a service saved a message as a dead letter. Another copy of it may still be applied.
    pub(crate) fn set_aside(&mut self, service: usize, id: Uuid) {
        self.set_aside[service].insert(id);
    }

    /// Records that the broker moved a message to a dead-letter queue. From now on its effect may be committed at any
    /// time, or never.
    pub(crate) fn dead_lettered_by_broker(&mut self, service: usize, id: Uuid) {
        self.set_aside[service].insert(id);
        self.by_broker[service].insert(id);
    }

    /// Records that a service committed an event's effect. Checks I4, I5 and I6.
    pub(crate) fn applied(&mut self, service: usize, event: &Event) {
        let id = event.id;
        let Some(record) = self.events.get(&id) else {
            return self
                .violate(format!("I5: service {service} applied {id}, but its event was never committed"));
        };
        if !self.applied[service].insert(id) {
            return self.violate(format!("I4: service {service} applied {id} twice"));
        }
        let (aggregate, version) = (record.aggregate, record.version);
        if self.by_broker[service].contains(&id) {
            return;
        }
        let older = self.ids_by_version[&aggregate].iter().take_while(|other| **other != id);
        let missing = older
            .copied()
            .find(|other| !self.applied[service].contains(other) && !self.by_broker[service].contains(other));
        let last = self.last_applied[service].entry(aggregate).or_default();
        let overtaken = *last > version;
        *last = version.max(*last);
        if let Some(missing) = missing {
            self.violate(format!(
                "I6: service {service} applied {id} before {missing} of the same aggregate"
            ));
        } else if overtaken {
            self.violate(format!(
                "I6: service {service} applied {id} after a later event of the same aggregate"
            ));
        }
    }

    /// Whether the event is applied or set aside at this service.
    pub(crate) fn is_settled(&self, service: usize, id: Uuid) -> bool {
        self.applied[service].contains(&id) || self.set_aside[service].contains(&id)
    }
}
