//! The write-ahead log in memory, as far as its events go, and its one replication slot.

use std::time::Duration;

/// `wal_sender_timeout`: how long the slot of a frozen relay is held.
const SLOT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(crate) struct Log {
    /// The `seq` of each event, in the order of their commits.
    pub(crate) entries: Vec<i64>,
    /// How many of them the server need not send again.
    pub(crate) acknowledged: usize,
    /// Which connection holds the slot, and when the server has heard of it.
    holder: Option<(u64, Duration)>,
    last_connection: u64,
}

impl Log {
    /// Gives the slot to a new connection, if no other holds it.
    pub(crate) fn open(&mut self, now: Duration, shares: bool) -> Option<u64> {
        let is_free = self.holder.is_none_or(|(_, heard)| heard + SLOT_TIMEOUT < now);
        (shares || is_free).then(|| {
            self.last_connection += 1;
            self.holder = Some((self.last_connection, now));
            self.last_connection
        })
    }

    /// Whether this connection holds the slot.
    pub(crate) fn is_held_by(&self, connection: u64) -> bool {
        self.holder.is_some_and(|(holder, _)| holder == connection)
    }

    pub(crate) fn hear(&mut self, now: Duration) {
        self.holder.iter_mut().for_each(|(_, heard)| *heard = now);
    }

    pub(crate) fn close(&mut self, connection: u64) {
        self.holder.take_if(|(holder, _)| *holder == connection);
    }
}
