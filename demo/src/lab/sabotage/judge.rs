//! Whether a system held, and if not, which invariant is red.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::super::Stage;
use crate::audit::{Audit, Kind};

/// What has not come to rest, and has not changed for this long, with everything running, is judged as it is. A relay
/// polls every second and makes full looks every three; a payment that was in the hands of the dead is due again after six.
const STILL_FOR: Duration = Duration::from_secs(10);

/// An invariant that went red, and what was seen.
#[derive(Clone, Debug, Serialize)]
pub struct Breach {
    /// `I1` to `I14`, as `docs/guarantees.md` counts them.
    pub invariant: &'static str,
    /// What was seen.
    pub what: String,
}

impl Breach {
    pub(super) fn new(invariant: &'static str, what: impl Into<String>) -> Option<Self> {
        Some(Self { invariant, what: what.into() })
    }
}

/// Waits until the stage is at rest, and says what is wrong with it then. Everything has to be running.
pub(super) async fn judge(stage: &Stage) -> Result<Option<Breach>> {
    let (mut before, mut deadline) = (String::new(), Instant::now() + STILL_FOR);
    loop {
        let audit = stage.audit().await?;
        let now = serde_json::to_string(&audit)?;
        // Before the deadline is looked at: counting many orders on busy cores may take that long by itself.
        if now != before {
            (before, deadline) = (now, Instant::now() + STILL_FOR);
        }
        let over = audit.beyond_hope() || audit.at_rest();
        if over || Instant::now() >= deadline {
            return Ok(breach(&audit));
        }
        sleep(Duration::from_millis(100)).await;
    }
}

fn breach(audit: &Audit) -> Option<Breach> {
    // What may still come is named only where nothing else is wrong.
    let worst = audit.findings.iter().find(|found| !found.may_pass()).or(audit.findings.first());
    if let Some(found) = worst {
        let invariant = match (found.kind, found.place.as_str()) {
            (Kind::Missing, "orders") if found.what.starts_with("acknowledged") => "I1",
            (Kind::Missing, "orders") => "I2",
            (Kind::Missing, _) => "I3",
            (Kind::Doubled | Kind::Sums, _) => "I4",
            (Kind::Phantom, _) => "I5",
            (Kind::Disorder, _) => "I6",
        };
        return Breach::new(invariant, format!("{}: {}", found.what, found.count));
    }
    if audit.under_way() > 0 {
        let Audit { owed, payments_owed, open, .. } = audit;
        return Breach::new(
            "I8",
            format!("{owed} events and {payments_owed} payments are owed, {open} orders open"),
        );
    }
    None
}
