//! A relay's connection to the log: what it has received, and what of it is done.

use crate::state::State;

#[derive(Default)]
pub(crate) struct LogReader {
    /// While it holds the slot.
    pub(crate) connection: Option<u64>,
    /// How many entries it has received.
    received: usize,
    /// Those that are not done: the log is never acknowledged past the first.
    pub(crate) pending: Vec<i64>,
}

impl LogReader {
    /// Takes the slot, if no other connection holds it, and begins after what was acknowledged.
    pub(crate) fn open(&mut self, state: &mut State, shares: bool) {
        let now = state.now;
        if let Some(log) = &mut state.log {
            self.connection = log.open(now, shares);
            (self.received, self.pending) = (log.acknowledged, vec![]);
        }
    }

    /// Takes what has arrived, up to a batch. `false`: the connection has ended.
    pub(crate) fn receive(&mut self, state: &mut State, batch: usize, shares: bool) -> bool {
        let now = state.now;
        let (Some(log), Some(connection)) = (&mut state.log, self.connection) else { return false };
        if !shares && !log.is_held_by(connection) {
            self.connection = None;
            return false;
        }
        log.hear(now);
        let before = self.pending.len();
        let arrived = log.entries.iter().skip(self.received).take(batch.saturating_sub(before));
        self.pending.extend(arrived);
        self.received += self.pending.len() - before;
        true
    }

    /// Removes what need not be read again, and acknowledges what is before the first that remains: sometimes later, as the
    /// server is told once a second.
    pub(crate) fn done(&mut self, state: &mut State, done: &[i64]) {
        let (passed, pending): (Vec<_>, _) = self.pending.drain(..).partition(|seq| done.contains(seq));
        self.pending = pending;
        let is_late = !self.pending.is_empty() && state.random.one_in(2);
        let State { log: Some(log), outbox, judge, .. } = state else { return };
        // Not at the acknowledgement: what an event waited behind may have been published since.
        for seq in &passed {
            if let Some(row) = outbox.rows.get(seq)
                && !row.published
                && row.attempts == 0
                && !outbox.has_older_pending(*seq, row)
            {
                let id = row.id;
                judge.violate(format!("I3: the log passes {id}, which is neither published nor refused"));
            }
        }
        if is_late || !self.connection.is_some_and(|connection| log.is_held_by(connection)) {
            return;
        }
        let first = self.pending.first().and_then(|seq| log.entries.iter().position(|entry| entry == seq));
        let position = first.unwrap_or(self.received);
        log.acknowledged = log.acknowledged.max(position);
    }

    /// Ends the connection.
    pub(crate) fn close(&mut self, state: &mut State) {
        if let (Some(log), Some(connection)) = (&mut state.log, self.connection.take()) {
            log.close(connection);
        }
    }
}
