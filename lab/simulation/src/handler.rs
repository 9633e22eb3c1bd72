//! A service's handler, which applies effects and dedupes them by the inbox in memory, and its table of dead letters.

use std::{
    collections::{BTreeSet, HashSet},
    panic::resume_unwind,
    time::Duration,
};

use events::Event;
use flaws::Flaw;
use messaging::{Applied, DeadLetter, DeadLetterStore, Failure, Handler};
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    fault::Fault,
    process::{InjectedFault, Process},
    sometimes::Sometimes,
};

/// Longer than the deadline that `messaging::settle` has for a handler: the consumer drops the handler's future.
const TOO_SLOW: Duration = Duration::from_secs(40);

/// Applies the effects of one service in memory, and saves its dead letters.
pub(crate) struct MemoryHandler {
    pub(crate) process: Process,
    pub(crate) service: usize,
}

/// A transaction on the inbox. It is rolled back when it is dropped.
struct Transaction<'handler> {
    handler: &'handler MemoryHandler,
    id: u64,
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        let mut state = self.handler.process.world.lock();
        state.inboxes[self.handler.service].processed.retain(|_, by| *by != Some(self.id));
    }
}

fn temporary(injected: InjectedFault) -> Failure {
    Failure::Temporary(injected.into())
}

impl Handler for MemoryHandler {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        let possible = [Fault::DatabaseError, Fault::HandlerTemporary];
        self.process.fault_point("begin the handler's transaction", &possible).await.map_err(temporary)?;
        let transaction = self.begin();
        let first = transaction.first_time(group).await?;
        let transaction = if self.process.world.has(Flaw::DedupeOutsideTransaction) {
            transaction.commit_processed();
            self.begin()
        } else {
            transaction
        };
        self.write_effects(&first).await?;
        transaction.commit(&first).await?;
        let duplicates = group.len() - first.len();
        if duplicates > 0 {
            self.process.world.lock().reach(Sometimes::DuplicateDropped);
        }
        Ok(Applied { first: first.len(), duplicates })
    }
}

impl MemoryHandler {
    fn begin(&self) -> Transaction<'_> {
        let mut state = self.process.world.lock();
        let inbox = &mut state.inboxes[self.service];
        inbox.last_transaction += 1;
        Transaction { handler: self, id: inbox.last_transaction }
    }

    /// Writes the effects, or fails in one of the ways in which a handler can.
    async fn write_effects(&self, first: &[&Event]) -> Result<(), Failure> {
        self.process.fault_point("write the effects", &[Fault::DatabaseError]).await.map_err(temporary)?;
        let too_slow = {
            let mut state = self.process.world.lock();
            let never_applicable = &state.inboxes[self.service].never_applicable;
            if first.iter().any(|event| never_applicable.contains(&event.id)) {
                state.faults.count(Fault::HandlerPermanent);
                return Err(Failure::Permanent("this event can never be applied".into()));
            }
            if state.injects(Fault::HandlerPermanent) {
                return Err(Failure::Permanent("refused this time".into()));
            }
            if state.injects(Fault::HandlerUnexpected) {
                return Err(Failure::Unexpected("unknown cause".into()));
            }
            if state.injects(Fault::HandlerPanic) {
                drop(state);
                // Unlike `panic!` it prints nothing, and ten thousand seeds have many of these.
                resume_unwind(Box::new("the handler panicked"));
            }
            state.injects(Fault::HandlerTooSlow)
        };
        if too_slow {
            sleep(TOO_SLOW).await;
        }
        Ok(())
    }
}

impl Transaction<'_> {
    /// `insert into processed_events … on conflict do nothing`: waits for an id that another open transaction has
    /// inserted, in the order of the ids. Returns the events that were not processed before.
    async fn first_time<'group>(&self, group: &'group [Event]) -> Result<Vec<&'group Event>, Failure> {
        let process = &self.handler.process;
        process.fault_point("insert into the inbox", &[Fault::DatabaseError]).await.map_err(temporary)?;
        if !process.world.has(Flaw::LaterEventsApplied) {
            let state = process.world.lock();
            let inbox = &state.inboxes[self.handler.service];
            let behind: HashSet<_> =
                group.iter().filter(|event| inbox.is_behind(event)).map(|event| event.id).collect();
            if !behind.is_empty() {
                return Err(Failure::Behind(behind));
            }
        }
        let ids: BTreeSet<_> = group.iter().map(|event| event.id).collect();
        let mut new = BTreeSet::new();
        for id in ids {
            loop {
                {
                    let mut state = process.world.lock();
                    let processed = &mut state.inboxes[self.handler.service].processed;
                    match processed.get(&id) {
                        None => {
                            processed.insert(id, Some(self.id));
                            new.insert(id);
                            break;
                        }
                        Some(None) => break,
                        Some(Some(_)) => {}
                    }
                }
                sleep(Duration::from_millis(2)).await;
            }
        }
        process.scheduling_point("after inserting into the inbox").await;
        Ok(group.iter().filter(|event| new.remove(&event.id)).collect())
    }

    async fn commit(self, first: &[&Event]) -> Result<(), Failure> {
        let process = &self.handler.process;
        let service = self.handler.service;
        let possible = [Fault::DatabaseError, Fault::CommitLost];
        process.fault_point("commit the effects", &possible).await.map_err(temporary)?;
        self.commit_processed();
        {
            let mut state = process.world.lock();
            for event in first {
                state.judge.applied(service, event);
            }
            state.note(process.actor, "applied", || {
                format!("{:?}", first.iter().map(|event| event.id).collect::<Vec<_>>())
            });
        }
        process.fault_point("after committing the effects", &[Fault::CommitUnknown]).await.map_err(temporary)
    }

    fn commit_processed(&self) {
        let mut state = self.handler.process.world.lock();
        for by in state.inboxes[self.handler.service].processed.values_mut() {
            if *by == Some(self.id) {
                *by = None;
            }
        }
    }
}

impl DeadLetterStore for MemoryHandler {
    async fn save(&self, letter: &DeadLetter) -> Result<(), Failure> {
        self.insert(letter, false).await.map(drop)
    }

    async fn save_behind(&self, letter: &DeadLetter) -> Result<bool, Failure> {
        self.insert(letter, true).await
    }

    async fn begin_attempt(&self, _: &str, event: Uuid) -> Result<u32, Failure> {
        self.process.fault_point("begin an attempt", &[Fault::DatabaseError]).await.map_err(temporary)?;
        let mut state = self.process.world.lock();
        let begun = state.inboxes[self.service].attempts.entry(event).or_default();
        *begun += 1;
        Ok(*begun)
    }

    async fn end_attempts(&self, _: &str, event: Uuid) -> Result<(), Failure> {
        self.process.fault_point("end the attempts", &[Fault::DatabaseError]).await.map_err(temporary)?;
        self.process.world.lock().inboxes[self.service].attempts.remove(&event);
        Ok(())
    }
}

impl MemoryHandler {
    /// Inserts a dead letter; with `only_behind` only if another one of its aggregate is there.
    async fn insert(&self, letter: &DeadLetter, only_behind: bool) -> Result<bool, Failure> {
        self.process.fault_point("save a dead letter", &[Fault::DatabaseError]).await.map_err(temporary)?;
        let event = events::decode(&letter.body, letter.message_id.as_deref(), None)
            .map_err(|rejection| Failure::Permanent(rejection.into()))?;
        let mut state = self.process.world.lock();
        let unknown = state.injects(Fault::DeadLetterUnknown);
        let is_saved = !unknown || state.random.one_in(2);
        let letters = &mut state.inboxes[self.service].dead_letters;
        if only_behind && !letters.iter().any(|(_, aggregate)| *aggregate == event.aggregate_id) {
            return Ok(false);
        }
        if is_saved {
            if !letters.iter().any(|(id, _)| *id == event.id) {
                letters.push((event.id, event.aggregate_id));
            }
            state.judge.set_aside(self.service, event.id);
            if only_behind {
                state.reach(Sometimes::SetAsideBehind);
            }
        }
        if unknown {
            return Err(Failure::Temporary("no answer to the commit of a dead letter".into()));
        }
        state.note(self.process.actor, "dead letter", || format!("{}: {}", event.id, letter.reason));
        Ok(true)
    }
}
