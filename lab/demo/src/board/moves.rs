//! The events that move: each one that was written, published or applied since the last reading.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::running_system::RunningSystem;

/// A busy database may answer late. One that is frozen does not.
const DEADLINE: Duration = Duration::from_secs(3);

/// One reading. By default nothing is known.
#[derive(Default)]
pub(crate) struct Reading {
    /// Each is `[hop, event type, end of the event's id, age in milliseconds]`. `null`: too many.
    pub(crate) moves: Value,
    /// How many events are pending in each lane of each outbox.
    pub(crate) pending: Value,
    /// How many events are published, and not applied by each service.
    pub(crate) waiting: Value,
}

/// The last reading, until it is taken.
#[derive(Default)]
pub(crate) struct Moves {
    last: Mutex<Option<Result<Reading>>>,
    taken: Notify,
}

impl Moves {
    /// Returns what was read since the last call. `None`: the database has not answered yet.
    pub(crate) fn take(&self) -> Option<Result<Reading>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        if last.is_some() {
            self.taken.notify_one();
        }
        last
    }

    /// Reads whenever a reading was taken, until it is dropped.
    pub(crate) async fn follow(&self, system: &RunningSystem) {
        let mut known = HashSet::new();
        loop {
            let read = timeout(DEADLINE, read(system, &mut known)).await.map_err(Into::into).flatten();
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
            self.taken.notified().await;
        }
    }
}

/// Reads the rows of the last seconds. `known` are the rows of the previous reading.
async fn read(system: &RunningSystem, known: &mut HashSet<(String, String)>) -> Result<Reading> {
    let mut read: Value = serde_json::from_str(&system.read(include_str!("moves.sql")).await?)?;
    let mut moves = read["moves"].take();
    if let Some(rows) = moves.as_array_mut() {
        let key = |row: &Value| (row[0].to_string(), row[2].to_string());
        let before = std::mem::replace(known, rows.iter().map(key).collect());
        rows.retain(|row| !before.contains(&key(row)));
    }
    Ok(Reading { moves, pending: read["pending"].take(), waiting: read["waiting"].take() })
}
