use std::time::Duration;

use events::LANES;
use flaws::Flaw;
use messaging::{
    Claim, ClaimedEvent, Error, MAX_NACKED_ATTEMPTS, OutboxTransaction, RETRY_SECONDS, Refusal, Store,
};

use crate::{
    fail_over::await_standby,
    fault::Fault,
    log_reader::LogReader,
    outbox_table::{Mark, Session},
    process::{InjectedFault, Process},
    sometimes::Sometimes,
    standby::Change,
    state::State,
};

/// The error after `idle_in_transaction_session_timeout`.
const SESSION_ENDED: &str = "the database ended the idle session";

/// An outbox in memory, as one relay sees it.
pub(crate) struct MemoryStore {
    pub(crate) process: Process,
    /// Only with `cursor-over-seq`: the last `seq` that it read.
    cursor: i64,
    /// The lane at which the next claim begins its search.
    first_lane: i16,
    /// Only under a `MemoryLogStore`.
    pub(crate) reader: LogReader,
}

impl MemoryStore {
    pub(crate) fn new(process: Process) -> Self {
        Self { process, cursor: 0, first_lane: 0, reader: LogReader::default() }
    }

    /// Begins a transaction that holds these lanes. Returns its session.
    pub(crate) fn begin_session(&self, state: &mut State, lanes: Vec<i16>, is_held: bool) -> u64 {
        let id = state.outbox.next_session;
        state.outbox.next_session += 1;
        state.note(self.process.actor, "locked lanes", || format!("{lanes:?}"));
        let session = Session {
            actor: self.process.actor,
            lanes: if is_held { lanes } else { vec![] },
            rows: vec![],
            staged: vec![],
            last_statement: state.now,
            lingers_until: None,
        };
        state.outbox.sessions.insert(id, session);
        id
    }
}

/// An open transaction in memory.
pub(crate) struct MemoryTransaction<'store> {
    pub(crate) store: &'store mut MemoryStore,
    session: u64,
    epoch: u64,
    /// Whether its events come from the log.
    from_log: bool,
    /// Claimed events that were refused.
    refused: Vec<i64>,
    ended: bool,
}

pub(crate) fn failed(what: &'static str) -> impl FnOnce(InjectedFault) -> Error {
    move |injected| Error::new(what, injected)
}

impl Store for MemoryStore {
    type Transaction<'store> = MemoryTransaction<'store>;

    async fn claim(&mut self, max_lanes: u8, batch: u16) -> Result<Claim<MemoryTransaction<'_>>, Error> {
        let process = self.process.clone();
        let claim = process.fault_point("claim lanes", &[Fault::DatabaseError]).await;
        claim.map_err(failed("failed to claim lanes"))?;
        let mut lanes = {
            let mut state = process.world.lock();
            let now = state.now;
            state.outbox_now().claimable_lanes(now, self.first_lane)
        };
        // The statement's snapshot is older than its locks: what it selected may be published by now.
        process.scheduling_point("lock lanes").await;
        let claimable = lanes.len();
        let session = {
            let mut state = process.world.lock();
            let outbox = state.outbox_now();
            let locks_rows = process.world.has(Flaw::SkipLockedOnRows);
            if !locks_rows {
                lanes.retain(|lane| outbox.is_free(*lane));
            }
            lanes.truncate(max_lanes.into());
            if lanes.is_empty() {
                return Ok(if claimable > 0 { Claim::Busy } else { Claim::Idle });
            }
            self.begin_session(&mut state, lanes.clone(), !locks_rows)
        };
        self.first_lane = lanes.last().map_or(0, |lane| (lane + 1) % LANES);
        // From here on, dropping the transaction releases the locks.
        let mut transaction = MemoryTransaction::new(self, session, false);
        process.scheduling_point("after locking lanes").await;
        let per_lane = (usize::from(batch) / lanes.len()).max(1);
        let events = transaction.claimable(&lanes, per_lane).await?;
        if events.is_empty() {
            transaction.end();
            return Ok(Claim::Busy);
        }
        transaction.await_standby().await?;
        let is_full = |lane| events.iter().filter(|event| event.message.lane == lane).count() >= per_lane;
        let more = lanes.len() < claimable || lanes.iter().any(|lane| is_full(*lane));
        Ok(Claim::Events { events, more, transaction })
    }
}

impl<'store> MemoryTransaction<'store> {
    pub(crate) fn new(store: &'store mut MemoryStore, session: u64, from_log: bool) -> Self {
        let epoch = store.process.world.lock().epoch;
        Self { store, session, epoch, from_log, refused: vec![], ended: false }
    }

    /// Begins a statement. Any statement can fail, and fails if the database has ended the session.
    pub(crate) async fn statement(&self, step: &'static str, failure: &'static str) -> Result<(), Error> {
        let process = &self.store.process;
        process.fault_point(step, &[Fault::DatabaseError]).await.map_err(failed(failure))?;
        let mut state = process.world.lock();
        let now = state.now;
        if let Some(session) = state.outbox_now().sessions.get_mut(&self.session) {
            session.last_statement = now;
            return Ok(());
        }
        if state.epoch == self.epoch {
            state.reach(Sometimes::FrozenSessionEnded);
        }
        Err(Error::new(failure, SESSION_ENDED))
    }

    async fn claimable(&mut self, lanes: &[i16], per_lane: usize) -> Result<Vec<ClaimedEvent>, Error> {
        self.statement("read claimable events", "failed to read claimable events").await?;
        let process = self.store.process.clone();
        let claimed = {
            let mut state = process.world.lock();
            let state = &mut *state;
            let locked_rows: Vec<i64> = if process.world.has(Flaw::SkipLockedOnRows) {
                state.outbox.sessions.values().flat_map(|session| session.rows.clone()).collect()
            } else {
                vec![]
            };
            let after = if process.world.has(Flaw::CursorOverSeq) { self.store.cursor } else { 0 };
            let mut claimed = Vec::new();
            for lane in lanes {
                let claimable = state.outbox.claimable(state.now);
                let free = claimable
                    .filter(|(seq, row)| row.lane == *lane && *seq > after && !locked_rows.contains(seq));
                claimed.extend(free.take(per_lane).map(|(seq, row)| row.event(seq)));
            }
            claimed.sort_by_key(|event| event.seq);
            if process.world.has(Flaw::SkipLockedOnRows)
                && let Some(session) = state.outbox.sessions.get_mut(&self.session)
            {
                session.rows = claimed.iter().map(|event| event.seq).collect();
            }
            self.store.cursor = claimed.last().map_or(self.store.cursor, |event| event.seq);
            state.hand_out(process.actor, &claimed);
            claimed
        };
        process.scheduling_point("after reading claimable events").await;
        Ok(claimed)
    }

    /// Waits until the standby has what the claim has read.
    async fn await_standby(&self) -> Result<(), Error> {
        let process = &self.store.process;
        if process.world.lock().standby.is_none() || process.world.has(Flaw::StandbyNotAwaited) {
            return Ok(());
        }
        if !await_standby(process).await {
            return Err(Error::new(
                "failed to wait for the standby",
                "it has not received the claimed events",
            ));
        }
        self.statement("keep the claim's session", "failed to keep the claim's session").await
    }

    pub(crate) fn end(&mut self) -> Option<Session> {
        self.ended = true;
        let mut state = self.store.process.world.lock();
        state.claimed.remove(&self.store.process.actor);
        state.outbox.sessions.remove(&self.session)
    }
}

impl OutboxTransaction for MemoryTransaction<'_> {
    async fn try_write(&mut self, _: &[ClaimedEvent]) -> Result<(), Error> {
        self.store.process.world.lock().reach(Sometimes::WriteTriedAfterFailedMarks);
        self.statement("try to write", "failed to write after failed marks").await
    }

    async fn mark_refused(&mut self, refused: &[(ClaimedEvent, Refusal)]) -> Result<(), Error> {
        self.statement("mark events as refused", "failed to mark events as refused").await?;
        for (event, refusal) in refused {
            let mut state = self.store.process.world.lock();
            let state = &mut *state;
            let attempts = state.outbox.rows.get(&event.seq).map_or(0, |row| row.attempts);
            let attempts =
                if refusal.may_be_final() { attempts } else { attempts.min(MAX_NACKED_ATTEMPTS.into()) };
            let longest = RETRY_SECONDS.get(attempts).copied().unwrap_or_default();
            let wait = state.random.part_of(Duration::from_secs_f64(longest));
            let mark = Mark::Refused { seq: event.seq, refusal: *refusal, available_at: state.now + wait };
            if let Some(session) = state.outbox.sessions.get_mut(&self.session) {
                session.staged.push(mark);
            }
            self.refused.push(event.seq);
            state.note(self.store.process.actor, "refused", || {
                format!("seq {}: {refusal}, next attempt after {wait:?}", event.seq)
            });
        }
        self.store.process.scheduling_point("after marking events as refused").await;
        Ok(())
    }

    async fn commit(mut self, confirmed: &[ClaimedEvent]) -> Result<(), Error> {
        const FAILURE: &str = "failed to commit the marks";
        if !confirmed.is_empty() {
            self.statement("mark events as published", "failed to mark events as published").await?;
            if let Some(session) = self.store.process.world.lock().outbox.sessions.get_mut(&self.session) {
                session.staged.extend(confirmed.iter().map(|event| Mark::Published(event.seq)));
            }
            self.store.process.scheduling_point("after marking events as published").await;
        }
        self.statement("commit the marks", FAILURE).await?;
        let process = self.store.process.clone();
        let commit = process.fault_point("while committing the marks", &[Fault::CommitLost]).await;
        commit.map_err(failed(FAILURE))?;
        process.world.lock().outbox_now();
        let claimed = process.world.lock().claimed.get(&process.actor).map_or(0, Vec::len);
        let Some(session) = self.end() else {
            return Err(Error::new(FAILURE, SESSION_ENDED));
        };
        {
            let mut state = process.world.lock();
            let state = &mut *state;
            state.outbox.apply(&session.staged);
            // Without waiting: `synchronous_commit = off`.
            state.replicate(Change::Marked(session.staged.clone()));
            // All that was sent was confirmed, so no aggregate was held back.
            let published = session.staged.iter().filter(|mark| matches!(mark, Mark::Published(_))).count();
            if state.sent.get(&process.actor) == Some(&published) && published < claimed {
                state.reach(Sometimes::WaveCutAtDeadline);
            }
            state.note(process.actor, "committed marks", || format!("{:?}", session.staged));
            for mark in &session.staged {
                if let Mark::Published(seq) = mark
                    && let Some(row) = state.outbox.rows.get(seq)
                {
                    state.judge.marked_published(row.id);
                }
            }
        }
        // The claimed events are settled: an error from here on causes no duplicates.
        process
            .fault_point("after committing the marks", &[Fault::CommitUnknown])
            .await
            .map_err(failed(FAILURE))?;
        if self.from_log {
            let mut done: Vec<_> = confirmed.iter().map(|event| event.seq).collect();
            if !process.world.has(Flaw::RefusalStopsLog) {
                done.append(&mut self.refused);
            }
            self.store.reader.done(&mut process.world.lock(), &done);
        }
        Ok(())
    }
}

impl Drop for MemoryTransaction<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut state = self.store.process.world.lock();
        let state = &mut *state;
        state.claimed.remove(&self.store.process.actor);
        // Usually the database notices at once that the connection has ended. Sometimes it takes a while.
        if state.outbox.sessions.contains_key(&self.session) && state.injects(Fault::SessionLingers) {
            let until = state.now + state.random.millis(500, 40_000);
            if let Some(session) = state.outbox.sessions.get_mut(&self.session) {
                session.lingers_until = Some(until);
                return;
            }
        }
        state.outbox.sessions.remove(&self.session);
    }
}
