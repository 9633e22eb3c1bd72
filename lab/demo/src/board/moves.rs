//! The events that move: each one that was written, published or applied since the last reading.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use tokio::sync::mpsc;
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

/// Reads whenever the last reading was taken out of the channel, which holds one.
pub(crate) async fn follow(system: &RunningSystem, readings: mpsc::Sender<Result<Reading>>) {
    let mut known = HashSet::new();
    while let Ok(taken) = readings.reserve().await {
        taken.send(timeout(DEADLINE, read(system, &mut known)).await.map_err(Into::into).flatten());
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
