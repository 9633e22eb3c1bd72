use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sqlx::PgConnection;
use tokio::time::Instant;

/// How often a pool asks one of its connections whether the server is read-only.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Whether the server refuses writes: it is a standby, or was set to read-only.
pub(crate) async fn is_read_only(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let setting: String = sqlx::query_scalar("show transaction_read_only").fetch_one(connection).await?;
    Ok(setting == "on")
}

/// Makes a pool drop its connections to a server that has become read-only.
///
/// After a failover the database's address leads to the new primary. A connection that was opened before still leads to
/// the old one, which answers, and refuses every write: without this it would be lent again for half an hour.
#[derive(Clone, Default)]
pub(crate) struct ReadOnlyCheck(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    checked: Option<Instant>,
    read_only: Option<Instant>,
}

impl ReadOnlyCheck {
    fn state<T>(&self, use_state: impl FnOnce(&mut State) -> T) -> T {
        use_state(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a connection of this age was opened before the server was last found read-only.
    pub(crate) fn outdates(&self, age: Duration) -> bool {
        self.state(|state| state.read_only.is_some_and(|at| age > at.elapsed()))
    }

    /// Whether a connection is to be asked now. Only the first of several callers is told so.
    pub(crate) fn is_due(&self) -> bool {
        self.state(|state| {
            let due = state.checked.is_none_or(|at| at.elapsed() > CHECK_INTERVAL);
            if due {
                state.checked = Some(Instant::now());
            }
            due
        })
    }

    /// Records what a connection has answered, and returns it.
    pub(crate) fn found(&self, read_only: bool) -> bool {
        if read_only {
            self.state(|state| state.read_only = Some(Instant::now()));
        }
        read_only
    }
}
