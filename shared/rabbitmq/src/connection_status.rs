//! Whether a publisher, a consumer or a collector can work, and why not. Optional. Without it: they work the same, and health,
//! metrics and the log cannot say why they do not.

use std::{
    mem::replace,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// A consumer that works on one group for longer than this has stalled.
const STALL_LIMIT: Duration = Duration::from_secs(8);

/// How long a check that found the queue empty stays valid. A consumer makes no check while it works on a group, and what
/// has arrived since waits behind that group.
const EMPTY_VALID_FOR: Duration = Duration::from_secs(10);

/// The status of one user of the broker (a publisher, a consumer, a collector). Cheap to clone; all clones show the same.
///
/// A change is logged once, however many attempts follow. The gauge `broker_connected` of a role is 1 while the connections of
/// all its users are open: a full queue or a memory alarm does not close them.
#[derive(Clone)]
pub struct ConnectionStatus {
    role: &'static str,
    /// The states of all users of the role.
    users: Arc<Mutex<Vec<State>>>,
    /// The index of this user.
    user: usize,
}

enum State {
    /// There is no connection, for this reason.
    Disconnected(String),
    /// The connection is open, and something else keeps the user from its work.
    Impeded(String),
    /// The rest is the progress of a consumer on its connection.
    Working {
        /// When it last checked its queue, if it was empty then and all that it held is applied, and whether it was known to be
        /// the active consumer.
        found_empty: Option<(Instant, bool)>,
        /// When it began with the group that it works on.
        since: Option<Instant>,
    },
}

impl ConnectionStatus {
    /// The status of the only user of a role, not connected yet.
    pub fn new(role: &'static str) -> Self {
        Self::of_users(role, 1).remove(0)
    }

    /// The statuses of so many users of a role, none of them connected yet.
    pub fn of_users(role: &'static str, users: usize) -> Vec<Self> {
        let states = (0..users).map(|_| State::Disconnected("not connected yet".into())).collect();
        let states = Arc::new(Mutex::new(states));
        let status = |user| {
            metrics::gauge!("broker_connected", "role" => role).set(0.0);
            Self { role, users: states.clone(), user }
        };
        (0..users).map(status).collect()
    }

    /// `Err` says why the broker cannot be used, or why nothing moves although it can.
    pub fn state(&self) -> Result<(), String> {
        match &self.users()[self.user] {
            State::Disconnected(reason) | State::Impeded(reason) => Err(reason.clone()),
            State::Working { since: Some(at), .. } if at.elapsed() > STALL_LIMIT => {
                Err(format!("no progress: one group of messages has taken {} s", at.elapsed().as_secs()))
            }
            State::Working { .. } => Ok(()),
        }
    }

    /// Whether a consumer was known to be the active one of its queue, at a check on this connection that found that nothing
    /// waited, and is at most ten seconds ago. What it held at that moment is applied. Of one that is not known to be active,
    /// another client may hold messages.
    pub fn caught_up(&self) -> Option<bool> {
        match self.users()[self.user] {
            State::Working { found_empty: Some((at, is_active)), .. } if at.elapsed() < EMPTY_VALID_FOR => {
                Some(is_active)
            }
            _ => None,
        }
    }

    /// Records up to when all that had come is applied, and whether the consumer was known to be the active one. `None`: something
    /// waits, or it is unknown.
    pub(crate) fn set_empty(&self, empty: Option<(Instant, bool)>) {
        if let State::Working { found_empty, .. } = &mut self.users()[self.user] {
            *found_empty = empty;
        }
    }

    /// Records that a group is being worked on, or that it is done.
    pub(crate) fn set_working(&self, working: bool) {
        if let State::Working { since, .. } = &mut self.users()[self.user] {
            *since = working.then(Instant::now);
        }
    }

    /// The connection is open, and nothing is in the way.
    pub(crate) fn working(&self) {
        if !matches!(self.users()[self.user], State::Working { .. }) {
            self.set(State::Working { found_empty: None, since: None });
        }
    }

    /// The connection is open, and cannot be used for this reason.
    pub(crate) fn impeded(&self, reason: &str) {
        self.set(State::Impeded(reason.to_owned()));
    }

    /// There is no connection, for this reason.
    pub(crate) fn disconnected(&self, reason: &str) {
        self.set(State::Disconnected(reason.to_owned()));
    }

    fn set(&self, next: State) {
        let (role, mut users) = (self.role, self.users());
        let last = replace(&mut users[self.user], next);
        let connected = users.iter().all(|state| !matches!(state, State::Disconnected(_)));
        metrics::gauge!("broker_connected", "role" => role).set(if connected { 1.0 } else { 0.0 });
        match (&last, &users[self.user]) {
            (State::Disconnected(_), State::Working { .. }) => {
                tracing::info!(role, "connected to the broker");
            }
            (_, State::Working { .. }) => tracing::info!(role, "the broker can be used again"),
            (State::Disconnected(last), State::Disconnected(reason))
            | (State::Impeded(last), State::Impeded(reason)) => {
                if last != reason {
                    tracing::debug!(role, reason, "the broker still cannot be used");
                }
            }
            (_, State::Disconnected(reason)) => tracing::warn!(role, reason, "not connected to the broker"),
            (_, State::Impeded(reason)) => {
                tracing::warn!(role, reason, "connected to the broker, but impeded");
            }
        }
    }

    fn users(&self) -> MutexGuard<'_, Vec<State>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
