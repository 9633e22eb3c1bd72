//! The life of one order, as its rows tell it.

use anyhow::Result;
use serde_json::Value;
use uuid::Uuid;

use crate::running_system::RunningSystem;

/// Returns what has happened to an order so far, by the databases' clocks. `null`: it does not exist.
pub(crate) async fn story(system: &RunningSystem, order: Uuid) -> Result<Value> {
    // A `Uuid` prints as hexadecimal digits and dashes only.
    let query = include_str!("story.sql").replace("PLACED", &format!("'{order}'"));
    Ok(serde_json::from_str(&system.read(&query).await?)?)
}
