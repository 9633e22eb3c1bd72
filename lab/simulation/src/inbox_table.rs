use std::collections::{BTreeMap, BTreeSet};

use events::Event;
use uuid::Uuid;

/// A consuming service's database: its table `processed_events`, and the transactions that are open on it.
#[derive(Default)]
pub(crate) struct InboxTable {
    /// `processed_events`: inserted by a transaction that is still open, or committed (`None`).
    pub(crate) processed: BTreeMap<Uuid, Option<u64>>,
    pub(crate) last_transaction: u64,
    /// Events that this service can never apply.
    pub(crate) never_applicable: BTreeSet<Uuid>,
    /// The table of dead letters, none of them resolved: the ids of an event and of its aggregate, in the order of saving.
    pub(crate) dead_letters: Vec<(Uuid, Uuid)>,
    /// How many attempts at an event have begun and not ended.
    pub(crate) attempts: BTreeMap<Uuid, u32>,
}

impl InboxTable {
    /// Whether an event waits behind an older dead letter of its aggregate, as in the SQL function `inbox_first_time`.
    pub(crate) fn is_behind(&self, event: &Event) -> bool {
        let saved_before_it = self.dead_letters.iter().take_while(|(id, _)| *id != event.id);
        self.processed.get(&event.id) != Some(&None)
            && saved_before_it.into_iter().any(|(_, aggregate)| *aggregate == event.aggregate_id)
    }
}
