use std::time::Duration;

use events::transport::{Outgoing, Refusal};
use outbox::{
    Error, RETRY_SECONDS,
    store::{Claimed, Hold, Reach, Store},
};

use crate::{
    fault::Fault,
    mutant::Mutant,
    outbox_rows::{Gate, Mark, Session},
    world::{Injected, Owner},
};

/// An outbox in memory, as one relay sees it.
pub(crate) struct MemoryStore {
    owner: Owner,
    gate: Gate,
    /// Only for the mutant that reads from where it stopped.
    cursor: i64,
}

impl MemoryStore {
    pub(crate) fn new(owner: Owner) -> Self {
        let gate = Gate {
            dirty: owner.world.is(Mutant::DirtyRead),
            ignores_older: owner.world.is(Mutant::OlderEventIgnored),
        };
        Self { owner, gate, cursor: 0 }
    }
}

/// An open transaction in memory.
pub(crate) struct MemoryHold<'store> {
    store: &'store mut MemoryStore,
    session: u64,
    ended: bool,
}

fn failed(what: &'static str) -> impl FnOnce(Injected) -> Error {
    move |injected| Error::new(what, injected)
}

impl Store for MemoryStore {
    type Hold<'store> = MemoryHold<'store>;

    async fn reach(&mut self, start: i16, share: u8) -> Result<Reach<MemoryHold<'_>>, Error> {
        let owner = self.owner.clone();
        owner.gate("reach", &[Fault::DatabaseError]).await.map_err(failed("cannot begin"))?;
        let wanted = {
            let mut state = owner.world.lock();
            let state = &mut *state;
            state.outbox.end_idle_sessions(state.now);
            state.outbox.lanes_with_work(state.now, self.gate, start)
        };
        // The statement's snapshot is older than its locks: what was due may be published by now.
        owner.pause("lock lanes").await;
        let session = {
            let mut state = owner.world.lock();
            let state = &mut *state;
            state.outbox.end_idle_sessions(state.now);
            let mut lanes = wanted;
            let by_rows = owner.world.is(Mutant::SkipLockedOnRows);
            if !by_rows {
                lanes.retain(|lane| state.outbox.is_free(*lane));
            }
            lanes.truncate(share.into());
            if lanes.is_empty() {
                let due = state.outbox.due(state.now, self.gate).next().is_some();
                return Ok(if due { Reach::Busy } else { Reach::Idle });
            }
            let id = state.outbox.next_session;
            state.outbox.next_session += 1;
            state.note(owner.who, "locked lanes", id.into(), || format!("{lanes:?}"));
            let locked = if by_rows { Vec::new() } else { lanes.clone() };
            let last = state.now;
            let session = Session {
                who: owner.who,
                lanes: locked,
                rows: vec![],
                staged: vec![],
                last,
                orphan_until: None,
            };
            state.outbox.sessions.insert(id, session);
            (lanes, id)
        };
        let (lanes, session) = session;
        // From here on the locks are freed whenever this is dropped.
        let hold = MemoryHold { store: self, session, ended: false };
        owner.pause("lanes are locked").await;
        Ok(Reach::Lanes(lanes, hold))
    }
}

impl MemoryHold<'_> {
    /// The way of every statement: it may fail, and it does fail if the session is gone.
    async fn statement(&self, what: &'static str) -> Result<(), Error> {
        let owner = &self.store.owner;
        owner.gate(what, &[Fault::DatabaseError]).await.map_err(failed(what))?;
        let mut state = owner.world.lock();
        let state = &mut *state;
        state.outbox.end_idle_sessions(state.now);
        match state.outbox.sessions.get_mut(&self.session) {
            Some(session) => {
                session.last = state.now;
                Ok(())
            }
            None => Err(Error::new(what, "the session was ended for idling")),
        }
    }

    fn end(&mut self) -> Option<Session> {
        self.ended = true;
        let mut state = self.store.owner.world.lock();
        state.in_hand.remove(&self.store.owner.who);
        state.outbox.sessions.remove(&self.session)
    }
}

impl Hold for MemoryHold<'_> {
    async fn due(&mut self, lanes: &[i16], per_lane: i64) -> Result<Vec<Claimed>, Error> {
        self.statement("read what is due").await?;
        let owner = self.store.owner.clone();
        let claimed = {
            let mut state = owner.world.lock();
            let state = &mut *state;
            let taken: Vec<i64> = if owner.world.is(Mutant::SkipLockedOnRows) {
                state.outbox.sessions.values().flat_map(|session| session.rows.clone()).collect()
            } else {
                vec![]
            };
            let behind = if owner.world.is(Mutant::CursorOverSeq) { self.store.cursor } else { 0 };
            let mut claimed = Vec::new();
            for lane in lanes {
                let due = state.outbox.due(state.now, self.store.gate);
                let free =
                    due.filter(|(seq, row)| row.lane == *lane && *seq > behind && !taken.contains(seq));
                let most = usize::try_from(per_lane).unwrap_or(usize::MAX);
                claimed.extend(free.take(most).map(|(seq, row)| Claimed {
                    seq,
                    lane: row.lane,
                    aggregate_id: row.aggregate,
                    message: Outgoing {
                        id: row.id,
                        event_type: "OrderCreated".into(),
                        body: row.body.clone(),
                        traceparent: Some(row.traceparent.clone()),
                    },
                }));
            }
            claimed.sort_by_key(|event| event.seq);
            if owner.world.is(Mutant::SkipLockedOnRows)
                && let Some(session) = state.outbox.sessions.get_mut(&self.session)
            {
                session.rows = claimed.iter().map(|event| event.seq).collect();
            }
            self.store.cursor = claimed.last().map_or(self.store.cursor, |event| event.seq);
            state.in_hand.insert(owner.who, claimed.iter().map(|event| event.message.id).collect());
            state.note(owner.who, "claimed", claimed.len() as u128, || {
                format!("{:?}", claimed.iter().map(|event| event.seq).collect::<Vec<_>>())
            });
            claimed
        };
        owner.pause("what is due was read").await;
        Ok(claimed)
    }

    async fn published(&mut self, confirmed: &[Claimed]) -> Result<(), Error> {
        self.statement("mark as published").await?;
        {
            let mut state = self.store.owner.world.lock();
            if let Some(session) = state.outbox.sessions.get_mut(&self.session) {
                session.staged.extend(confirmed.iter().map(|event| Mark::Published(event.seq)));
            }
        }
        self.store.owner.pause("marked as published").await;
        Ok(())
    }

    async fn refused(&mut self, event: &Claimed, refusal: Refusal) -> Result<(), Error> {
        self.statement("mark as refused").await?;
        {
            let mut state = self.store.owner.world.lock();
            let state = &mut *state;
            let attempts = state.outbox.rows.get(&event.seq).map_or(0, |row| row.attempts);
            let longest = RETRY_SECONDS.get(attempts).copied().unwrap_or_default();
            let wait = state.dice.part_of(Duration::from_secs_f64(longest));
            let mark = Mark::Refused { seq: event.seq, available: state.now + wait };
            if let Some(session) = state.outbox.sessions.get_mut(&self.session) {
                session.staged.push(mark);
            }
            state.note(self.store.owner.who, "refused", event.seq.unsigned_abs().into(), || {
                format!("seq {}: {refusal}, again after {wait:?}", event.seq)
            });
        }
        self.store.owner.pause("marked as refused").await;
        Ok(())
    }

    async fn commit(mut self) -> Result<(), Error> {
        self.statement("commit the marks").await?;
        let owner = self.store.owner.clone();
        let lost = owner.gate("commit of the marks", &[Fault::CommitLost]).await;
        lost.map_err(failed("cannot commit"))?;
        {
            let mut state = owner.world.lock();
            let state = &mut *state;
            state.outbox.end_idle_sessions(state.now);
        }
        let Some(session) = self.end() else {
            return Err(Error::new("cannot commit", "the session was ended for idling"));
        };
        {
            let mut state = owner.world.lock();
            let state = &mut *state;
            state.outbox.apply(&session.staged, RETRY_SECONDS.len());
            state.note(owner.who, "committed marks", session.staged.len() as u128, || {
                format!("{:?}", session.staged)
            });
            for mark in &session.staged {
                if let Mark::Published(seq) = mark
                    && let Some(row) = state.outbox.rows.get(seq)
                {
                    state.judge.marked_published(row.id);
                }
            }
        }
        // What was in hand is settled: an error from here on costs no second copy.
        owner.gate("the marks are committed", &[Fault::CommitUnknown]).await.map_err(failed("cannot commit"))
    }
}

impl Drop for MemoryHold<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut state = self.store.owner.world.lock();
        let state = &mut *state;
        state.in_hand.remove(&self.store.owner.who);
        // Mostly the database sees the end of the connection. Sometimes it does not, for a while.
        if state.outbox.sessions.contains_key(&self.session) && state.strikes(Fault::SessionLingers) {
            let until = state.now + state.dice.millis(500, 40_000);
            if let Some(session) = state.outbox.sessions.get_mut(&self.session) {
                session.orphan_until = Some(until);
                return;
            }
        }
        state.outbox.sessions.remove(&self.session);
    }
}
