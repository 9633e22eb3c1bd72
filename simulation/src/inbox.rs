//! A consumer's database: what it has processed, and the transactions that are open.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::resume_unwind,
    time::Duration,
};

use events::{
    Event,
    transport::{Applied, Failure, Handler},
};
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    fault::Fault,
    mutant::Mutant,
    world::{Injected, Owner},
};

#[derive(Default)]
pub(crate) struct Inbox {
    /// `processed_events`: inserted by a transaction that is still open, or committed (`None`).
    pub(crate) processed: BTreeMap<Uuid, Option<u64>>,
    next_transaction: u64,
    /// Events that this service can never apply.
    pub(crate) poison: BTreeSet<Uuid>,
}

/// The effects of a service, applied into memory.
pub(crate) struct MemoryHandler {
    pub(crate) owner: Owner,
    pub(crate) service: usize,
}

/// A transaction that is rolled back when it is dropped.
struct Transaction<'handler> {
    handler: &'handler MemoryHandler,
    id: u64,
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        let mut state = self.handler.owner.world.lock();
        state.inboxes[self.handler.service].processed.retain(|_, by| *by != Some(self.id));
    }
}

fn temporary(injected: Injected) -> Failure {
    Failure::Temporary(injected.into())
}

impl Handler for MemoryHandler {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        self.owner
            .gate("begin", &[Fault::DatabaseError, Fault::HandlerTemporary])
            .await
            .map_err(temporary)?;
        let transaction = self.begin();
        let first = transaction.first_time(group).await?;
        let transaction = if self.owner.world.is(Mutant::DedupeOutsideTransaction) {
            transaction.commit_processed();
            self.begin()
        } else {
            transaction
        };
        self.effect(&first).await?;
        transaction.commit(&first).await?;
        Ok(Applied { first: first.len(), duplicates: group.len() - first.len() })
    }
}

impl MemoryHandler {
    fn begin(&self) -> Transaction<'_> {
        let mut state = self.owner.world.lock();
        let inbox = &mut state.inboxes[self.service];
        inbox.next_transaction += 1;
        Transaction { handler: self, id: inbox.next_transaction }
    }

    /// Writing the effects, and everything that a handler can do instead.
    async fn effect(&self, first: &[&Event]) -> Result<(), Failure> {
        self.owner.gate("write the effects", &[Fault::DatabaseError]).await.map_err(temporary)?;
        let too_slow = {
            let mut state = self.owner.world.lock();
            let poison = &state.inboxes[self.service].poison;
            if first.iter().any(|event| poison.contains(&event.id)) {
                state.faults.count(Fault::HandlerPermanent);
                return Err(Failure::Permanent("this event makes no sense".into()));
            }
            if state.strikes(Fault::HandlerPermanent) {
                return Err(Failure::Permanent("refused for now".into()));
            }
            if state.strikes(Fault::HandlerUnexpected) {
                return Err(Failure::Unexpected("nobody knows".into()));
            }
            if state.strikes(Fault::HandlerPanic) {
                drop(state);
                // Not `panic!`: this one unwinds without a word, and ten thousand seeds have a lot of them.
                resume_unwind(Box::new("the handler panicked"));
            }
            state.strikes(Fault::HandlerTooSlow)
        };
        if too_slow {
            // Past the deadline that the group has for its handler: this future is dropped while it sleeps.
            sleep(Duration::from_secs(40)).await;
        }
        Ok(())
    }
}

impl Transaction<'_> {
    /// `insert into processed_events … on conflict do nothing`: an id that another open transaction has inserted is
    /// waited for, in the order of the ids.
    async fn first_time<'group>(&self, group: &'group [Event]) -> Result<Vec<&'group Event>, Failure> {
        let owner = &self.handler.owner;
        owner.gate("insert into the inbox", &[Fault::DatabaseError]).await.map_err(temporary)?;
        let ids: BTreeSet<_> = group.iter().map(|event| event.id).collect();
        let mut new = BTreeSet::new();
        for id in ids {
            loop {
                {
                    let mut state = owner.world.lock();
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
        owner.pause("inserted into the inbox").await;
        Ok(group.iter().filter(|event| new.remove(&event.id)).collect())
    }

    async fn commit(self, first: &[&Event]) -> Result<(), Failure> {
        let owner = &self.handler.owner;
        let service = self.handler.service;
        let may = [Fault::DatabaseError, Fault::CommitLost];
        owner.gate("commit the effects", &may).await.map_err(temporary)?;
        self.commit_processed();
        {
            let mut state = owner.world.lock();
            for event in first {
                state.judge.applied(service, event);
            }
            state.note(owner.who, "applied", first.len() as u128, || {
                format!("{:?}", first.iter().map(|event| event.id).collect::<Vec<_>>())
            });
        }
        owner.gate("the effects are committed", &[Fault::CommitUnknown]).await.map_err(temporary)
    }

    fn commit_processed(&self) {
        let mut state = self.handler.owner.world.lock();
        for by in state.inboxes[self.handler.service].processed.values_mut() {
            if *by == Some(self.id) {
                *by = None;
            }
        }
    }
}
