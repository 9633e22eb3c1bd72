//! The tables `outbox` and `outbox_lanes`, and the database sessions that hold locks on them.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use events::LANES;
use flaws::Flaw;
use messaging::{ClaimedEvent, MAX_NACKED_ATTEMPTS, Outgoing, RETRY_SECONDS, Refusal};
use uuid::Uuid;

use crate::history::Actor;

/// How long the database lets a session idle in a transaction: `idle_in_transaction_session_timeout` in
/// `shared/database/src/session_settings.rs`.
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
    pub(crate) available_at: Duration,
    pub(crate) attempts: usize,
    pub(crate) published: bool,
    pub(crate) parked: bool,
}

impl Row {
    /// The event as a claim returns it.
    pub(crate) fn event(&self, seq: i64) -> ClaimedEvent {
        ClaimedEvent {
            seq,
            aggregate_id: self.aggregate,
            created_at: SystemTime::UNIX_EPOCH,
            refused_before: self.attempts > 0,
            message: Outgoing {
                id: self.id,
                event_type: "OrderCreated".into(),
                lane: self.lane,
                body: self.body.clone(),
                traceparent: Some(self.traceparent.clone()),
            },
        }
    }
}

/// A change that a relay's transaction makes at its commit.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Mark {
    Published(i64),
    Refused { seq: i64, refusal: Refusal, available_at: Duration },
}

/// A relay's database session, with its locks.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) actor: Actor,
    pub(crate) lanes: Vec<i16>,
    /// Locked event rows: only with `skip-locked-on-rows`.
    pub(crate) rows: Vec<i64>,
    pub(crate) staged: Vec<Mark>,
    /// When its last statement ended.
    pub(crate) last_statement: Duration,
    /// Set when the relay is gone: the database notices it only at this time.
    pub(crate) lingers_until: Option<Duration>,
}

#[derive(Default)]
pub(crate) struct OutboxTable {
    pub(crate) rows: BTreeMap<i64, Row>,
    pub(crate) last_seq: i64,
    pub(crate) sessions: BTreeMap<u64, Session>,
    pub(crate) next_session: u64,
    pub(crate) flaw: Option<Flaw>,
}

impl OutboxTable {
    /// Removes the sessions that the database has ended by now: their locks are free and their changes are gone.
    pub(crate) fn end_idle_sessions(&mut self, now: Duration) {
        self.sessions.retain(|_, session| {
            now < session.last_statement + IDLE_LIMIT && session.lingers_until.is_none_or(|until| now < until)
        });
    }

    pub(crate) fn is_free(&self, lane: i16) -> bool {
        self.sessions.values().all(|session| !session.lanes.contains(&lane))
    }

    /// Whether the event is pending and its back-off is over.
    fn is_due(&self, row: &Row, now: Duration) -> bool {
        let is_visible = row.committed || self.flaw == Some(Flaw::DirtyRead);
        is_visible && !row.published && !row.parked && row.available_at <= now
    }

    /// Whether an older event of the aggregate backs off or is parked: the inner `not exists` of `outbox_claimable`.
    fn is_held_back(&self, seq: i64, row: &Row, now: Duration) -> bool {
        self.rows.range(..seq).any(|(_, older)| {
            older.aggregate == row.aggregate
                && !older.published
                && older.attempts > 0
                && (older.parked || older.available_at > now)
        })
    }

    /// The claimable events in order: the SQL function `outbox_claimable`.
    pub(crate) fn claimable(&self, now: Duration) -> impl Iterator<Item = (i64, &Row)> {
        let ignores_older = self.flaw == Some(Flaw::OlderEventIgnored);
        self.rows.iter().map(|(seq, row)| (*seq, row)).filter(move |(seq, row)| {
            self.is_due(row, now) && (ignores_older || !self.is_held_back(*seq, row, now))
        })
    }

    /// Lanes with claimable events, beginning the search at `first_lane`.
    pub(crate) fn claimable_lanes(&self, now: Duration, first_lane: i16) -> Vec<i16> {
        let mut lanes: Vec<_> = self.claimable(now).map(|(_, row)| row.lane).collect();
        lanes.sort_by_key(|lane| (lane - first_lane + LANES) % LANES);
        lanes.dedup();
        lanes
    }

    /// Applies the changes of a committed transaction, as `outbox::mark_refused` does.
    pub(crate) fn apply(&mut self, staged: &[Mark]) {
        for mark in staged {
            let (Mark::Published(seq) | Mark::Refused { seq, .. }) = mark;
            let Some(row) = self.rows.get_mut(seq).filter(|row| !row.published) else {
                continue;
            };
            match mark {
                Mark::Published(_) => row.published = true,
                Mark::Refused { refusal, available_at, .. } => {
                    if refusal.may_be_final() {
                        row.attempts += 1;
                        row.parked = row.attempts >= RETRY_SECONDS.len();
                    } else {
                        row.attempts = row.attempts.max((row.attempts + 1).min(MAX_NACKED_ATTEMPTS.into()));
                    }
                    row.available_at = *available_at;
                }
            }
        }
    }

    /// Whether an older event of the aggregate is pending, so that this one waits for it in the table.
    pub(crate) fn has_older_pending(&self, seq: i64, row: &Row) -> bool {
        self.rows.range(..seq).any(|(_, older)| older.aggregate == row.aggregate && !older.published)
    }

    /// Whether this event will never be published: it is parked, or an older event of its aggregate is.
    pub(crate) fn is_parked_or_behind(&self, seq: i64, row: &Row) -> bool {
        row.parked
            || self.rows.range(..seq).any(|(_, older)| older.aggregate == row.aggregate && older.parked)
    }
}
