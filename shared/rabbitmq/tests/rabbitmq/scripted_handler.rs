//! A handler that follows a script, and a consumer that calls it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use events::Event;
use messaging::{Applied, Failure, Handler};
use rabbitmq::{ConnectionStatus, Consumer, topology};
use testbed::eventually;
use uuid::Uuid;

use crate::{
    scripted_store::ScriptedStore,
    support::{DEADLINE, Running, Vhost},
};

pub(crate) const QUEUE: &str = topology::INVENTORY;

type Script = dyn Fn(&Event, usize) -> Result<(), Failure> + Send + Sync;

/// Applies events or fails, as its script says. The script gets the event and the number of this try, from 1.
#[derive(Clone)]
pub(crate) struct ScriptedHandler {
    script: Arc<Script>,
    pub(crate) record: Arc<Mutex<Record>>,
    /// Where its consumer saves dead letters.
    pub(crate) letters: ScriptedStore,
}

#[derive(Default)]
pub(crate) struct Record {
    tries: HashMap<Uuid, usize>,
    applied: Vec<Uuid>,
    pub(crate) largest_group: usize,
    pub(crate) largest_applied: usize,
}

impl ScriptedHandler {
    pub(crate) fn new(script: impl Fn(&Event, usize) -> Result<(), Failure> + Send + Sync + 'static) -> Self {
        Self { script: Arc::new(script), record: Arc::default(), letters: ScriptedStore::that_saves() }
    }

    pub(crate) fn that_applies() -> Self {
        Self::new(|_, _| Ok(()))
    }

    pub(crate) fn applied(&self) -> Vec<Uuid> {
        self.record.lock().unwrap().applied.clone()
    }

    pub(crate) fn tries(&self, id: Uuid) -> usize {
        self.record.lock().unwrap().tries.get(&id).copied().unwrap_or(0)
    }

    /// Waits until all these events are applied.
    pub(crate) async fn has_applied(&self, events: &[Uuid]) -> anyhow::Result<()> {
        eventually("all events to be applied", DEADLINE, async || {
            let applied = self.applied();
            Ok(events.iter().all(|event| applied.contains(event)).then_some(()))
        })
        .await
    }
}

impl Handler for ScriptedHandler {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        // All or nothing, as in a transaction.
        for event in group {
            let tries = {
                let mut record = self.record.lock().unwrap();
                record.largest_group = record.largest_group.max(group.len());
                let tries = record.tries.entry(event.id).or_default();
                *tries += 1;
                *tries
            };
            (self.script)(event, tries)?;
        }
        let mut record = self.record.lock().unwrap();
        record.largest_applied = record.largest_applied.max(group.len());
        record.applied.extend(group.iter().map(|event| event.id));
        Ok(Applied { first: group.len(), duplicates: 0 })
    }
}

pub(crate) fn consume(vhost: &Vhost, handler: &ScriptedHandler) -> Running {
    let consumer = Consumer::new(vhost.endpoint(), QUEUE, ConnectionStatus::new("test"));
    Running::start(|stop| consumer.run(handler.clone(), handler.letters.clone(), stop))
}

pub(crate) fn unavailable() -> Failure {
    Failure::Temporary("the database is unavailable".into())
}
