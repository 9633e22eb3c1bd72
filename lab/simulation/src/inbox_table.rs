use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

/// A consuming service's database: its table `processed_events`, and the transactions that are open on it.
#[derive(Default)]
pub(crate) struct InboxTable {
    /// `processed_events`: inserted by a transaction that is still open, or committed (`None`).
    pub(crate) processed: BTreeMap<Uuid, Option<u64>>,
    pub(crate) last_transaction: u64,
    /// Events that this service can never apply.
    pub(crate) never_applicable: BTreeSet<Uuid>,
}
