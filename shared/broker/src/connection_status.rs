use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
    user: Arc<Mutex<User>>,
}

#[derive(Default)]
struct User {
    /// `None` while connected; else the reason.
    down: Option<String>,
    /// For a consumer: when it last checked its queue, if it was empty then.
    found_empty: Option<Instant>,
    /// For a consumer: when it began with the group that it works on.
    working_since: Option<Instant>,
}

impl ConnectionStatus {
    /// The status of the first user of a role, not connected yet.
    pub fn new(role: &'static str) -> Self {
        Self { role, disconnected_users: Arc::default(), user: Arc::default() }.register_user()
    }

    /// The status of one more user of the same role, not connected yet.
    #[must_use]
    pub fn register_user(&self) -> Self {
        let down = Some("not connected yet".into());
        let user = Arc::new(Mutex::new(User { down, ..User::default() }));
        let status = Self { user, ..self.clone() };
        status.count(|disconnected| disconnected + 1);
        status
    }

    fn user(&self) -> MutexGuard<'_, User> {
        self.user.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, change: impl FnOnce(u32) -> u32) {
        let mut disconnected = self.disconnected_users.lock().unwrap_or_else(PoisonError::into_inner);
        *disconnected = change(*disconnected);
        let connected = if *disconnected == 0 { 1.0 } else { 0.0 };
        metrics::gauge!("broker_connected", "role" => self.role).set(connected);
    }

    /// `Err` says why the broker cannot be used, or why nothing moves although it can.
    pub fn state(&self) -> Result<(), String> {
        let user = self.user();
        match (&user.down, user.working_since.map(|at| at.elapsed())) {
            (Some(reason), _) => Err(reason.clone()),
            (None, Some(time)) if time > STALL_LIMIT => {
                Err(format!("no progress: one group of messages has taken {} s", time.as_secs()))
            }
            _ => Ok(()),
        }
    }

    /// Records that a group is being worked on, or that it is done.
    pub(crate) fn set_working(&self, working: bool) {
        self.user().working_since = working.then(Instant::now);
    }

    /// Whether a consumer had received everything that waited in its queue, at the last check on this connection, and that
    /// check is at most ten seconds ago. What it held at that moment may not be applied yet. Never of a consumer that has
    /// received nothing on this connection: another client may be the active one.
    pub fn caught_up(&self) -> bool {
        self.user().found_empty.is_some_and(|at| at.elapsed() < EMPTY_COUNTS_FOR)
    }

    /// Records how many messages waited in the consumer's queue at a check; `None` if that is unknown.
    pub(crate) fn set_waiting(&self, messages: Option<u32>) {
        self.user().found_empty = (messages == Some(0)).then(Instant::now);
    }

    pub(crate) fn up(&self) {
        let was = self.user().down.take();
        if was.is_some() {
            self.count(|disconnected| disconnected.saturating_sub(1));
            tracing::info!(role = self.role, "connected to the broker");
        }
    }

    pub(crate) fn down(&self, reason: &str) {
        self.user().found_empty = None;
        let was = self.user().down.replace(reason.to_owned());
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
