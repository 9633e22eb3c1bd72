//! A handler and a store of dead letters that follow scripts, and a consumer and a collector that call them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use events::Event;
use messaging::{Applied, DeadLetter, DeadLetterStore, Failure, Handler};
use rabbitmq::{Consumer, DeadLetterCollector, Endpoint};
use testbed::eventually;
use uuid::Uuid;

use crate::support::{DEADLINE, QUEUE, Running, Switch, Vhost, until};

type Script<T, R> = dyn Fn(&T, usize) -> Result<R, Failure> + Send + Sync;

/// Applies events or fails, as its script says. The script gets the event and the number of this try, from 1.
#[derive(Clone)]
pub(crate) struct ScriptedHandler {
    script: Arc<Script<Event, ()>>,
    /// A larger group takes too long.
    pub(crate) fast_enough: usize,
    /// Whether it never returns.
    hangs: bool,
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
        let (record, letters) = (Arc::default(), ScriptedStore::that_saves());
        Self { script: Arc::new(script), fast_enough: usize::MAX, hangs: false, record, letters }
    }

    pub(crate) fn that_applies() -> Self {
        Self::new(|_, _| Ok(()))
    }

    /// Never returns.
    pub(crate) fn that_hangs() -> Self {
        Self { hangs: true, ..Self::that_applies() }
    }

    /// Fails temporarily.
    pub(crate) fn that_waits() -> Self {
        Self::new(|_, _| Err(unavailable()))
    }

    /// Fails temporarily until `released` is on.
    pub(crate) fn that_waits_for(released: &Switch) -> Self {
        let released = released.clone();
        Self::new(move |_, _| if released.is_on() { Ok(()) } else { Err(unavailable()) })
    }

    pub(crate) fn with(self, letters: &ScriptedStore) -> Self {
        Self { letters: letters.clone(), ..self }
    }

    pub(crate) fn applied(&self) -> Vec<Uuid> {
        self.record.lock().unwrap().applied.clone()
    }

    pub(crate) fn tries(&self, id: Uuid) -> usize {
        self.record.lock().unwrap().tries.get(&id).copied().unwrap_or(0)
    }

    /// Waits until it has tried this event more than `tries` times.
    pub(crate) async fn has_tried(&self, event: Uuid, tries: usize) -> anyhow::Result<()> {
        until("the event to be tried", || self.tries(event) > tries).await
    }

    /// Waits until all these events are applied.
    pub(crate) async fn has_applied(&self, events: &[Uuid]) -> anyhow::Result<()> {
        until("all events to be applied", || {
            let applied = self.applied();
            events.iter().all(|event| applied.contains(event))
        })
        .await
    }

    /// Waits until all these events are applied, and checks that it was in their order and that no other one was.
    pub(crate) async fn has_applied_exactly(&self, events: &[Uuid]) -> anyhow::Result<()> {
        self.has_applied(events).await?;
        assert_eq!(self.applied(), events);
        Ok(())
    }
}

impl Handler for ScriptedHandler {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        if group.len() > self.fast_enough {
            return Err(Failure::TooSlow("canceling statement due to statement timeout".into()));
        }
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
        if self.hangs {
            std::future::pending::<()>().await;
        }
        let mut record = self.record.lock().unwrap();
        record.largest_applied = record.largest_applied.max(group.len());
        let first = group.iter().filter(|event| !record.applied.contains(&event.id)).count();
        record.applied.extend(group.iter().map(|event| event.id));
        Ok(Applied { first, duplicates: group.len() - first })
    }
}

pub(crate) fn consume(vhost: &Vhost, handler: &ScriptedHandler) -> Running {
    consume_with(vhost.endpoint(), handler, |consumer| consumer)
}

pub(crate) fn consume_with(
    endpoint: Endpoint,
    handler: &ScriptedHandler,
    with: impl FnOnce(Consumer) -> Consumer,
) -> Running {
    let (handler, letters) = (handler.clone(), handler.letters.clone());
    Running::start(|status, stop| with(Consumer::new(endpoint, QUEUE, status)).run(handler, letters, stop))
}

pub(crate) fn unavailable() -> Failure {
    Failure::Temporary("the database is unavailable".into())
}

/// Saves dead letters or fails, as its script says. The script gets the dead letter and the number of earlier calls; `false`
/// means that an event is no longer behind a dead letter.
#[derive(Clone)]
pub(crate) struct ScriptedStore {
    script: Arc<Script<DeadLetter, bool>>,
    hangs: bool,
    calls: Arc<Mutex<usize>>,
    saved: Arc<Mutex<Vec<DeadLetter>>>,
    attempts: Arc<Mutex<HashMap<Uuid, u32>>>,
}

impl ScriptedStore {
    pub(crate) fn new(
        script: impl Fn(&DeadLetter, usize) -> Result<bool, Failure> + Send + Sync + 'static,
    ) -> Self {
        let (calls, saved, attempts) = (Arc::default(), Arc::default(), Arc::default());
        Self { script: Arc::new(script), hangs: false, calls, saved, attempts }
    }

    pub(crate) fn that_saves() -> Self {
        Self::new(|_, _| Ok(true))
    }

    /// Saves a dead letter and never returns, so that it is not acknowledged.
    pub(crate) fn that_hangs() -> Self {
        Self { hangs: true, ..Self::that_saves() }
    }

    /// How many attempts at an event have begun and not ended.
    pub(crate) fn attempts(&self, event: Uuid) -> u32 {
        self.attempts.lock().unwrap().get(&event).copied().unwrap_or(0)
    }

    /// Records attempts that a consumer began and did not survive.
    pub(crate) fn set_attempts(&self, event: Uuid, begun: u32) {
        self.attempts.lock().unwrap().insert(event, begun);
    }

    /// What is saved now.
    pub(crate) fn letters(&self) -> Vec<DeadLetter> {
        self.saved.lock().unwrap().clone()
    }

    /// Waits until `count` dead letters are saved, and returns them.
    pub(crate) async fn saved(&self, count: usize) -> anyhow::Result<Vec<DeadLetter>> {
        eventually("the dead letters to be saved", DEADLINE, async || {
            let saved = self.letters();
            Ok((saved.len() >= count).then_some(saved))
        })
        .await
    }
}

impl DeadLetterStore for ScriptedStore {
    async fn save(&self, letter: &DeadLetter) -> Result<(), Failure> {
        self.save_behind(letter).await.map(drop)
    }

    async fn save_behind(&self, letter: &DeadLetter) -> Result<bool, Failure> {
        let earlier_calls = {
            let mut calls = self.calls.lock().unwrap();
            *calls += 1;
            *calls - 1
        };
        let saves = (self.script)(letter, earlier_calls)?;
        if saves {
            self.saved.lock().unwrap().push(letter.clone());
        }
        if self.hangs {
            std::future::pending::<()>().await;
        }
        Ok(saves)
    }

    async fn begin_attempt(&self, _: &str, event: Uuid) -> Result<u32, Failure> {
        let begun = self.attempts(event) + 1;
        self.set_attempts(event, begun);
        Ok(begun)
    }

    async fn end_attempts(&self, _: &str, event: Uuid) -> Result<(), Failure> {
        self.attempts.lock().unwrap().remove(&event);
        Ok(())
    }
}

/// The ids of messages that are dead letters.
pub(crate) fn ids(letters: &[DeadLetter]) -> Vec<&str> {
    letters.iter().map(|letter| letter.message_id.as_deref().unwrap_or_default()).collect()
}

pub(crate) fn collect(vhost: &Vhost, store: &ScriptedStore) -> Running {
    let (endpoint, store) = (vhost.endpoint(), store.clone());
    Running::start(|status, stop| DeadLetterCollector::new(endpoint, QUEUE, status).run(store, stop))
}
