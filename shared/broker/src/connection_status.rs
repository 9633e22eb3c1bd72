use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// A consumer that works on one group for longer than this has stalled.
const STALL_LIMIT: Duration = Duration::from_secs(8);

/// For so long it counts that a consumer found its queue empty. A consumer that works on one group does not look, and what
/// has arrived since waits behind that group.
const EMPTY_COUNTS_FOR: Duration = Duration::from_secs(10);

/// Whether the broker answers one user of it (a publisher, a consumer). Cheap to clone; all clones show the same.
///
/// A change is logged once, however many attempts follow. The gauge `broker_connected` of a role is 1 while all its users
/// are connected.
#[derive(Clone)]
pub struct ConnectionStatus {
    role: &'static str,
    /// How many users of this role are disconnected.
    disconnected_users: Arc<Mutex<u32>>,
    /// `None` while connected; else the reason.
    down: Arc<Mutex<Option<String>>>,
    /// For a consumer: when it last checked its queue, if it was empty then.
    found_empty: Arc<Mutex<Option<Instant>>>,
    /// For a consumer: when it began with the group that it works on.
    working_since: Arc<Mutex<Option<Instant>>>,
}

impl ConnectionStatus {
    /// The status of the first user of a role, not connected yet.
    pub fn new(role: &'static str) -> Self {
        Self {
            role,
            disconnected_users: Arc::default(),
            down: Arc::default(),
            found_empty: Arc::default(),
            working_since: Arc::default(),
        }
        .register_user()
    }

    /// The status of one more user of the same role, not connected yet.
    #[must_use]
    pub fn register_user(&self) -> Self {
        let user = Self {
            role: self.role,
            disconnected_users: self.disconnected_users.clone(),
            down: Arc::new(Mutex::new(Some("not connected yet".into()))),
            found_empty: Arc::default(),
            working_since: Arc::default(),
        };
        user.count(|disconnected| disconnected + 1);
        user
    }

    fn count(&self, change: impl FnOnce(u32) -> u32) {
        let mut disconnected = self.disconnected_users.lock().unwrap_or_else(PoisonError::into_inner);
        *disconnected = change(*disconnected);
        let connected = if *disconnected == 0 { 1.0 } else { 0.0 };
        metrics::gauge!("broker_connected", "role" => self.role).set(connected);
    }

    /// `Err` says why the broker cannot be used, or why nothing moves although it can.
    pub fn state(&self) -> Result<(), String> {
        if let Some(reason) = self.down.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            return Err(reason.clone());
        }
        let working =
            self.working_since.lock().unwrap_or_else(PoisonError::into_inner).map(|at| at.elapsed());
        match working {
            Some(time) if time > STALL_LIMIT => {
                Err(format!("no progress: one group of messages has taken {} s", time.as_secs()))
            }
            _ => Ok(()),
        }
    }

    /// Records that a group is being worked on, or that it is done.
    pub(crate) fn set_working(&self, working: bool) {
        let since = working.then(Instant::now);
        *self.working_since.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Whether a consumer had received everything that waited in its queue, at the last check on this connection, and that
    /// check is at most ten seconds ago. What it held at that moment may not be applied yet.
    pub fn caught_up(&self) -> bool {
        let found_empty = *self.found_empty.lock().unwrap_or_else(PoisonError::into_inner);
        found_empty.is_some_and(|at| at.elapsed() < EMPTY_COUNTS_FOR)
    }

    /// Records how many messages waited in the consumer's queue at a check; `None` if that is unknown.
    pub(crate) fn set_waiting(&self, messages: Option<u32>) {
        let empty = (messages == Some(0)).then(Instant::now);
        *self.found_empty.lock().unwrap_or_else(PoisonError::into_inner) = empty;
    }

    pub(crate) fn up(&self) {
        let was = self.down.lock().unwrap_or_else(PoisonError::into_inner).take();
        if was.is_some() {
            self.count(|disconnected| disconnected.saturating_sub(1));
            tracing::info!(role = self.role, "connected to the broker");
        }
    }

    pub(crate) fn down(&self, reason: &str) {
        *self.found_empty.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let was = self.down.lock().unwrap_or_else(PoisonError::into_inner).replace(reason.to_owned());
        match was {
            None => {
                self.count(|disconnected| disconnected + 1);
                tracing::warn!(role = self.role, reason, "not connected to the broker");
            }
            Some(was) if was != reason => {
                tracing::debug!(role = self.role, reason, "still not connected to the broker");
            }
            Some(_) => {}
        }
    }
}
