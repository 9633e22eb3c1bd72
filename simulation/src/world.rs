//! What everybody in the simulation shares, and the gate through which everything they do has to pass.

use std::{
    collections::BTreeMap,
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use outbox::Wake;
use tokio::{
    sync::Notify,
    task::yield_now,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    dice::Dice,
    fault::{Fault, Faults},
    history::{History, Who},
    inbox::Inbox,
    judge::Judge,
    mutant::Mutant,
    outbox_rows::Outbox,
    queues::Broker,
    writer::Aggregate,
};

/// The services that consume: inventory and billing, say.
pub(crate) const SERVICES: usize = 2;

pub(crate) struct World {
    state: Mutex<State>,
    began: Instant,
    pub(crate) mutant: Option<Mutant>,
    /// Ends relays and consumers, once everything is at rest.
    pub(crate) stop: CancellationToken,
}

pub(crate) struct State {
    pub(crate) now: Duration,
    pub(crate) dice: Dice,
    pub(crate) faults: Faults,
    pub(crate) history: History,
    pub(crate) judge: Judge,
    pub(crate) aggregates: Vec<Aggregate>,
    pub(crate) outbox: Outbox,
    pub(crate) broker: Broker,
    pub(crate) inboxes: [Inbox; SERVICES],
    pub(crate) wakes: BTreeMap<usize, Wake>,
    /// Until when the databases are away.
    pub(crate) database_away: Duration,
    /// The events that a relay has in its hands: what a fault may double.
    pub(crate) in_hand: BTreeMap<Who, Vec<Uuid>>,
}

impl World {
    pub(crate) fn new(state: State, mutant: Option<Mutant>) -> Self {
        Self { state: Mutex::new(state), began: Instant::now(), mutant, stop: CancellationToken::new() }
    }

    /// The one lock. Everything runs on one thread and nobody waits while holding it, so it is never contended.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.now = self.began.elapsed();
        state
    }

    pub(crate) fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    pub(crate) fn into_state(self) -> State {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub(crate) fn strikes(&mut self, fault: Fault) -> bool {
        let strikes = self.faults.strikes(fault, &mut self.dice);
        if strikes {
            self.history.add(self.now, Who::World, "fault", fault as u128, || format!("{fault:?}"));
        }
        strikes
    }

    pub(crate) fn note(
        &mut self,
        who: Who,
        what: &'static str,
        number: u128,
        detail: impl FnOnce() -> String,
    ) {
        self.history.add(self.now, who, what, number, detail);
    }
}

/// The operation did not succeed: what the real one would call a lost connection.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} was injected")]
pub(crate) struct Injected(pub(crate) Fault);

/// One life of a writer, a relay or a consumer. It ends when the fault "crash" strikes: whoever runs it then drops the
/// future, wherever that was.
#[derive(Clone)]
pub(crate) struct Owner {
    pub(crate) world: Arc<World>,
    pub(crate) who: Who,
    pub(crate) death: Arc<Notify>,
}

/// What the gate does with whoever comes by.
enum Fate {
    Pass,
    Yield(usize),
    Wait(Duration),
    Fail(Fault),
    Die,
}

impl Owner {
    pub(crate) fn new(world: &Arc<World>, who: Who) -> Self {
        Self { world: Arc::clone(world), who, death: Arc::new(Notify::new()) }
    }

    /// A place between two steps, where others may go first, time may pass, and this one may die or freeze.
    pub(crate) async fn pause(&self, place: &'static str) {
        // A pause has no error to give.
        let _ = self.gate(place, &[]).await;
    }

    /// A pause before an operation that may also fail in these ways.
    pub(crate) async fn gate(&self, place: &'static str, may: &[Fault]) -> Result<(), Injected> {
        let fate = self.fate(place, may);
        match fate {
            Fate::Pass => {}
            Fate::Yield(times) => {
                for _ in 0..times {
                    yield_now().await;
                }
            }
            Fate::Wait(for_how_long) => sleep(for_how_long).await,
            Fate::Fail(fault) => return Err(Injected(fault)),
            Fate::Die => {
                self.death.notify_one();
                pending::<()>().await;
            }
        }
        Ok(())
    }

    fn fate(&self, place: &'static str, may: &[Fault]) -> Fate {
        let mut state = self.world.lock();
        let state = &mut *state;
        state.note(self.who, place, 0, String::new);
        let away = state.now < state.database_away;
        if away && may.contains(&Fault::DatabaseError) {
            state.risk(self.who);
            return Fate::Fail(Fault::DatabaseAway);
        }
        for fault in may {
            if state.strikes(*fault) {
                state.risk(self.who);
                return Fate::Fail(*fault);
            }
        }
        let (crash, frozen) = match self.who {
            Who::Writer(_) => (Fault::WriterCrash, None),
            Who::Relay(_) => (Fault::RelayCrash, Some(Fault::RelayFrozen)),
            Who::Consumer(..) => (Fault::ConsumerCrash, Some(Fault::ConsumerFrozen)),
            Who::World => return Fate::Pass,
        };
        if state.strikes(crash) {
            state.risk(self.who);
            return Fate::Die;
        }
        if frozen.is_some_and(|fault| state.strikes(fault)) {
            state.risk(self.who);
            if let Who::Consumer(service, instance) = self.who {
                state.cut_instance(service, instance);
            }
            return Fate::Wait(state.dice.millis(1_000, 60_000));
        }
        if state.dice.one_in(3) {
            return Fate::Yield(state.dice.between(1, 3));
        }
        if state.dice.one_in(6) {
            return Fate::Wait(state.dice.millis(1, 30));
        }
        Fate::Pass
    }
}

impl State {
    /// A fault has met this owner: what it has in its hands may be published once more.
    pub(crate) fn risk(&mut self, who: Who) {
        if let Some(in_hand) = self.in_hand.get(&who) {
            self.judge.allow_duplicates(in_hand.iter().copied());
        }
    }
}
