//! The board's own count of what is missing or doubled: cheap enough to be read beside the load. The full
//! reconciliation judges each fault of the board, and `demo verify`.

use std::collections::HashSet;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::ledger::Ledger;
use crate::running_system::RunningSystem;

use super::clock::now;

/// Which acknowledged orders are known, so that each is looked for once.
#[derive(Default)]
pub(crate) struct Count {
    /// How much of the ledger was read, in bytes.
    offset: u64,
    acknowledged: HashSet<Uuid>,
    /// Those that were not among the orders yet.
    unseen: Vec<Uuid>,
}

impl Count {
    /// Counts once. `idle`: no message is on its way to a consumer, and none is being applied. Until then, or while
    /// something is in progress, an effect that is missing may still arrive, and is no finding.
    pub(crate) async fn read(
        &mut self,
        system: &RunningSystem,
        ledger: &Ledger,
        idle: bool,
    ) -> Result<Value> {
        let began = now();
        let before = self.offset;
        let acknowledged = ledger.acknowledged_since(&mut self.offset)?;
        if self.offset < before {
            self.acknowledged.clear();
            self.unseen.clear();
        }
        for id in acknowledged {
            if self.acknowledged.insert(id) {
                self.unseen.push(id);
            }
        }
        let ids: Vec<String> = self.unseen.iter().map(Uuid::to_string).collect();
        let ids = format!("'{{{}}}'::uuid[]", ids.join(","));
        let query = include_str!("count.sql").replacen("ACKNOWLEDGED", &ids, 1);
        let mut count: Value = serde_json::from_str(&system.read(&query).await?)?;
        self.unseen = serde_json::from_value(count["unseen"].take())?;
        // Orders are never deleted: with fewer of them than were seen, each is looked for again.
        let orders = count["orders"].as_u64().context("failed to read the number of orders")?;
        if orders < (self.acknowledged.len() - self.unseen.len()) as u64 {
            self.unseen = self.acknowledged.iter().copied().collect();
        }
        let done = idle && count["inProgress"] == 0;
        let findings = count["findings"].as_array_mut().context("failed to read the findings")?;
        findings.retain(|finding| done || finding["mayArrive"] == false);
        count["acknowledged"] = json!(self.acknowledged.len());
        count["at"] = json!(now());
        count["milliseconds"] = json!(now() - began);
        Ok(count)
    }
}
