//! The tables `outbox` and `outbox_lanes`, and the sessions that have locks on them.

use std::{collections::BTreeMap, time::Duration};

use events::LANES;
use uuid::Uuid;

use crate::history::Who;

/// How long the database lets a session idle in a transaction: what `shared/runtime` sets.
pub(crate) const IDLE_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) id: Uuid,
    pub(crate) aggregate: Uuid,
    pub(crate) version: i32,
    pub(crate) lane: i16,
    pub(crate) body: Vec<u8>,
    pub(crate) traceparent: String,
    pub(crate) committed: bool,
    pub(crate) available: Duration,
    pub(crate) attempts: usize,
    pub(crate) published: bool,
    pub(crate) parked: bool,
}

/// What a transaction of a relay would change.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Mark {
    Published(i64),
    Refused { seq: i64, available: Duration },
}

/// A relay's session, with its locks.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) who: Who,
    pub(crate) lanes: Vec<i16>,
    /// Only in a store that locks rows.
    pub(crate) rows: Vec<i64>,
    pub(crate) staged: Vec<Mark>,
    /// When its last statement ended.
    pub(crate) last: Duration,
    /// Its owner is gone, and the database will notice then.
    pub(crate) orphan_until: Option<Duration>,
}

#[derive(Default)]
pub(crate) struct Outbox {
    pub(crate) rows: BTreeMap<i64, Row>,
    pub(crate) next_seq: i64,
    pub(crate) sessions: BTreeMap<u64, Session>,
    pub(crate) next_session: u64,
}

impl Outbox {
    /// Ends the sessions that the database would have ended by now. Their locks are free, their changes gone.
    pub(crate) fn end_idle_sessions(&mut self, now: Duration) {
        self.sessions.retain(|_, session| {
            now < session.last + IDLE_LIMIT && session.orphan_until.is_none_or(|until| now < until)
        });
    }

    pub(crate) fn is_free(&self, lane: i16) -> bool {
        self.sessions.values().all(|session| !session.lanes.contains(&lane))
    }

    fn is_owed(row: &Row, now: Duration, dirty: bool) -> bool {
        (row.committed || dirty) && !row.published && !row.parked && row.available <= now
    }

    /// An older event of the aggregate waits for another attempt, or is parked: the inner `not exists` of the claim.
    fn is_held_back(&self, seq: i64, row: &Row, now: Duration) -> bool {
        self.rows.range(..seq).any(|(_, older)| {
            older.aggregate == row.aggregate
                && !older.published
                && older.attempts > 0
                && (older.parked || older.available > now)
        })
    }

    /// What is due now, in order: the `where` of `shared/outbox/src/claim.rs`.
    pub(crate) fn due(&self, now: Duration, gate: Gate) -> impl Iterator<Item = (i64, &Row)> {
        self.rows.iter().map(|(seq, row)| (*seq, row)).filter(move |(seq, row)| {
            Self::is_owed(row, now, gate.dirty) && (gate.ignores_older || !self.is_held_back(*seq, row, now))
        })
    }

    /// Lanes in which something is due, beginning the search at `start`.
    pub(crate) fn lanes_with_work(&self, now: Duration, gate: Gate, start: i16) -> Vec<i16> {
        let mut lanes: Vec<_> = self.due(now, gate).map(|(_, row)| row.lane).collect();
        lanes.sort_by_key(|lane| (lane - start + LANES) % LANES);
        lanes.dedup();
        lanes
    }

    /// Makes a transaction's changes true.
    pub(crate) fn apply(&mut self, staged: &[Mark], attempts: usize) {
        for mark in staged {
            let (Mark::Published(seq) | Mark::Refused { seq, .. }) = mark;
            let Some(row) = self.rows.get_mut(seq).filter(|row| !row.published) else {
                continue;
            };
            match mark {
                Mark::Published(_) => row.published = true,
                Mark::Refused { available, .. } => {
                    row.attempts += 1;
                    row.available = *available;
                    row.parked = row.attempts >= attempts;
                }
            }
        }
    }

    /// Whether this event will never be published: it is parked, or waits behind one that is.
    pub(crate) fn is_parked_or_behind(&self, seq: i64, row: &Row) -> bool {
        row.parked
            || self.rows.range(..seq).any(|(_, older)| older.aggregate == row.aggregate && older.parked)
    }
}

/// Which events a claim lets through. The mutants have holes in it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Gate {
    pub(crate) dirty: bool,
    pub(crate) ignores_older: bool,
}
