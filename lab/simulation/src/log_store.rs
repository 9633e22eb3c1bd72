//! The claim of a relay that reads the log: what `outbox::LogStore` and `outbox_claim_logged` do with PostgreSQL.

use std::{collections::BTreeSet, time::Duration};

use flaws::Flaw;
use messaging::{Claim, Error, Store};

use crate::{
    fault::Fault,
    process::Process,
    state::State,
    store::{MemoryStore, MemoryTransaction, failed},
};

/// An outbox in memory, as one relay reads it from the log.
pub(crate) struct MemoryLogStore {
    /// Claims what the log has passed, and marks all.
    table: MemoryStore,
    table_interval: Duration,
    next_table_claim: Duration,
}

impl MemoryLogStore {
    pub(crate) fn new(process: Process, table_interval: Duration) -> Self {
        Self { table: MemoryStore::new(process), table_interval, next_table_claim: Duration::ZERO }
    }
}

impl Drop for MemoryLogStore {
    /// The connection ends with its process. The server notices that sometimes later, as with a frozen process.
    fn drop(&mut self) {
        let state = &mut *self.table.process.world.lock();
        if !state.injects(Fault::SessionLingers) {
            self.table.reader.close(state);
        }
    }
}

impl Store for MemoryLogStore {
    type Transaction<'store> = MemoryTransaction<'store>;

    async fn claim(&mut self, lanes: u8, batch: u16) -> Result<Claim<MemoryTransaction<'_>>, Error> {
        let process = self.table.process.clone();
        let (flaw, shares) = (process.world.flaw, process.world.has(Flaw::SlotShared));
        let table = &mut self.table;
        if let Err(injected) = process.fault_point("read the log", &[Fault::DatabaseError]).await {
            table.reader.close(&mut process.world.lock());
            return Err(failed("failed to read the log")(injected));
        }
        if table.reader.connection.is_none() {
            table.reader.open(&mut process.world.lock(), shares);
            self.next_table_claim = Duration::ZERO;
            return Ok(Claim::Idle);
        }
        let table_has_events = {
            let mut state = process.world.lock();
            if !table.reader.receive(&mut state, batch.into(), shares) {
                return Err(Error::new("failed to read the log", "the database has ended the connection"));
            }
            table.reader.done(&mut state, &[]);
            let now = state.now;
            self.next_table_claim <= now && state.outbox_now().claimable(now).next().is_some()
        };
        if table_has_events {
            self.next_table_claim = process.world.lock().now + self.table_interval;
            return table.claim(lanes, batch).await;
        }
        let arrived = table.reader.pending.clone();
        if arrived.is_empty() {
            return Ok(Claim::Idle);
        }
        process.scheduling_point("claim events of the log").await;
        let (session, locked) = {
            let mut state = process.world.lock();
            let outbox = state.outbox_now();
            let rows = arrived.iter().filter_map(|seq| outbox.rows.get(seq));
            let lanes: BTreeSet<_> = rows.map(|row| row.lane).collect();
            let locked: BTreeSet<_> =
                lanes.into_iter().filter(|lane| shares || outbox.is_free(*lane)).collect();
            (table.begin_session(&mut state, locked.iter().copied().collect(), !shares), locked)
        };
        // From here on, dropping the transaction releases the locks.
        let mut transaction = MemoryTransaction::new(table, session, true);
        process.scheduling_point("after locking lanes").await;
        transaction.statement("decide about events of the log", "failed to claim events").await?;
        let (events, keeps) = {
            let mut state = process.world.lock();
            let (mut events, mut done) = (vec![], vec![]);
            for seq in &arrived {
                match decide(&state, *seq, &arrived, &locked, flaw) {
                    Decision::Publish => events.extend(state.outbox.rows.get(seq).map(|row| row.event(*seq))),
                    Decision::Keep => {}
                    Decision::Pass => done.push(*seq),
                }
            }
            if flaw == Some(Flaw::LogAcknowledgedEarly) {
                done.extend(events.iter().map(|event| event.seq));
            }
            let reader = &mut transaction.store.reader;
            reader.done(&mut state, &done);
            let keeps = reader.pending.len() > events.len();
            if !events.is_empty() {
                state.hand_out(process.actor, &events);
            }
            (events, keeps)
        };
        if events.is_empty() {
            transaction.end();
            return Ok(if keeps { Claim::Busy } else { Claim::Idle });
        }
        process.scheduling_point("after claiming events of the log").await;
        Ok(Claim::Events { events, more: keeps, transaction })
    }

    fn release(&mut self) {
        self.table.reader.close(&mut self.table.process.world.lock());
    }
}

/// What a claim does with an event of the log.
enum Decision {
    Publish,
    /// It stays: its lane is another relay's, or its commit is not visible yet.
    Keep,
    /// It is done, or the table has it.
    Pass,
}

fn decide(state: &State, seq: i64, batch: &[i64], locked: &BTreeSet<i16>, flaw: Option<Flaw>) -> Decision {
    let Some(row) = state.outbox.rows.get(&seq) else { return Decision::Pass };
    if !row.committed && flaw != Some(Flaw::InvisiblePassed) {
        return Decision::Keep;
    }
    if row.committed && !locked.contains(&row.lane) {
        return Decision::Keep;
    }
    if !row.committed || row.published {
        return Decision::Pass;
    }
    let is_behind = state.outbox.rows.range(..seq).any(|(older, other)| {
        other.aggregate == row.aggregate && !other.published && (other.attempts > 0 || !batch.contains(older))
    });
    match flaw {
        _ if row.attempts == 0 && !is_behind => Decision::Publish,
        Some(Flaw::RefusalStopsLog) => Decision::Keep,
        _ => Decision::Pass,
    }
}
