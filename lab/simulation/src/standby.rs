//! The synchronous standby of the outbox's database: what it has received of the log.

use std::{collections::VecDeque, time::Duration};

use crate::outbox_table::{Mark, OutboxTable, Row};

/// A committed transaction, as the log carries it.
pub(crate) enum Change {
    Inserted(i64, Row),
    Marked(Vec<Mark>),
}

#[derive(Default)]
pub(crate) struct Standby {
    pub(crate) table: OutboxTable,
    /// What it has not received yet, and when it will have.
    pub(crate) sent: VecDeque<(Duration, Change)>,
}

impl Standby {
    /// When it has all that was written so far. `None`: it has.
    pub(crate) fn has_all_at(&self) -> Option<Duration> {
        self.sent.back().map(|(at, _)| *at)
    }

    pub(crate) fn receive(&mut self, now: Duration) {
        while let Some((_, change)) = self.sent.pop_front_if(|(at, _)| *at <= now) {
            match change {
                Change::Inserted(seq, row) => _ = self.table.rows.insert(seq, row),
                Change::Marked(marks) => self.table.apply(&marks),
            }
        }
    }
}
