use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use tokio::sync::mpsc;

/// What a person begins and one task carries out: its state, which the page shows, and the way to the task.
pub(crate) struct Work<State, Begun> {
    state: Mutex<State>,
    begun: mpsc::UnboundedSender<Begun>,
}

impl<State: Clone, Begun: Send + Sync + 'static> Work<State, Begun> {
    /// The receiver is for the task.
    pub(crate) fn new(state: State) -> (Self, mpsc::UnboundedReceiver<Begun>) {
        let (begun, receiver) = mpsc::unbounded_channel();
        (Self { state: Mutex::new(state), begun }, receiver)
    }

    pub(crate) fn state(&self) -> State {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Sends to the task what `begin` returns. `begin` changes the state under the same lock, so that the second of two
    /// simultaneous requests is refused.
    pub(crate) fn begin(&self, begin: impl FnOnce(&mut State) -> Result<Begun>) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(self.begun.send(begin(&mut state)?)?)
    }
}
