//! The simulated world, its processes, and the points at which the seed decides what happens to them.

use std::{
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use flaws::Flaw;
use tokio::{
    sync::Notify,
    task::yield_now,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{broker_actions::close_channels_of_instance, fault::Fault, history::Actor, state::State};

/// The simulated world: the state that all processes share.
pub(crate) struct World {
    state: Mutex<State>,
    began: Instant,
    pub(crate) flaw: Option<Flaw>,
    /// Stops relays and consumers once nothing is pending.
    pub(crate) stop: CancellationToken,
}

impl World {
    pub(crate) fn new(state: State) -> Self {
        let (began, flaw) = (Instant::now(), state.outbox.flaw);
        Self { state: Mutex::new(state), began, flaw, stop: CancellationToken::new() }
    }

    /// Locks the state. All tasks run on one thread and none awaits while it holds the lock, so it is never contended.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.now = self.began.elapsed();
        state
    }

    pub(crate) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    pub(crate) fn into_state(self) -> State {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An injected fault, as the error of an operation: what a real client reports as a lost connection.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} was injected")]
pub(crate) struct InjectedFault(pub(crate) Fault);

/// One process of a writer, a relay or a consumer, from its start to its crash.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) world: Arc<World>,
    pub(crate) actor: Actor,
    /// Crashes the process: `environment` drops its future, at whichever await that is.
    pub(crate) crash: Arc<Notify>,
}

/// What the seed decides for one process at one point.
enum Decision {
    Continue,
    Yield(usize),
    Sleep(Duration),
    Fail(Fault),
    Crash,
}

impl Process {
    pub(crate) fn new(world: &Arc<World>, actor: Actor) -> Self {
        Self { world: Arc::clone(world), actor, crash: Arc::new(Notify::new()) }
    }

    /// A point between two steps: other tasks may run first, time may pass, and the process may freeze or crash.
    pub(crate) async fn scheduling_point(&self, step: &'static str) {
        // Without possible faults it returns no error.
        let _ = self.fault_point(step, &[]).await;
    }

    /// A scheduling point before an operation that can also fail, with one of these faults.
    pub(crate) async fn fault_point(
        &self,
        step: &'static str,
        possible: &[Fault],
    ) -> Result<(), InjectedFault> {
        let decision = self.decide(&mut self.world.lock(), step, possible);
        match decision {
            Decision::Continue => {}
            Decision::Yield(times) => {
                for _ in 0..times {
                    yield_now().await;
                }
            }
            Decision::Sleep(duration) => sleep(duration).await,
            Decision::Fail(fault) => return Err(InjectedFault(fault)),
            Decision::Crash => {
                self.crash.notify_one();
                pending::<()>().await;
            }
        }
        Ok(())
    }

    fn decide(&self, state: &mut State, step: &'static str, possible: &[Fault]) -> Decision {
        state.note(self.actor, step, String::new);
        let database_is_unavailable = state.now < state.databases_unavailable_until;
        if database_is_unavailable && possible.contains(&Fault::DatabaseError) {
            state.allow_duplicates_of_claimed(self.actor);
            return Decision::Fail(Fault::DatabaseUnavailable);
        }
        for fault in possible {
            if state.injects(*fault) {
                state.allow_duplicates_of_claimed(self.actor);
                return Decision::Fail(*fault);
            }
        }
        let (crash, freeze) = match self.actor {
            Actor::Writer(_) => (Fault::WriterCrash, None),
            Actor::Relay(_) => (Fault::RelayCrash, Some(Fault::RelayFrozen)),
            Actor::Consumer(..) => (Fault::ConsumerCrash, Some(Fault::ConsumerFrozen)),
            Actor::Environment => return Decision::Continue,
        };
        if state.injects(crash) {
            state.allow_duplicates_of_claimed(self.actor);
            return Decision::Crash;
        }
        if freeze.is_some_and(|fault| state.injects(fault)) {
            state.allow_duplicates_of_claimed(self.actor);
            if let Actor::Consumer(service, instance) = self.actor {
                close_channels_of_instance(state, service, instance);
            }
            return Decision::Sleep(state.random.millis(1_000, 60_000));
        }
        if state.random.one_in(3) {
            return Decision::Yield(state.random.between(1, 3));
        }
        if state.random.one_in(6) {
            return Decision::Sleep(state.random.millis(1, 30));
        }
        Decision::Continue
    }
}
