use std::sync::{Mutex, MutexGuard, PoisonError};

use flaws::Flaw;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::state::State;

/// The simulated world: the state that all processes share.
pub(crate) struct World {
    state: Mutex<State>,
    began: Instant,
    pub(crate) flaw: Option<Flaw>,
    /// Stops relays and consumers once nothing is pending.
    pub(crate) stop: CancellationToken,
}

impl World {
    pub(crate) fn new(state: State, flaw: Option<Flaw>) -> Self {
        Self { state: Mutex::new(state), began: Instant::now(), flaw, stop: CancellationToken::new() }
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
