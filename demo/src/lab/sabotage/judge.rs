//! Whether a system held, and if not, which invariant is red.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::super::Stage;
use crate::audit::{Audit, Kind};

/// What has not come to rest after this long, with everything running, is judged as it is.
const AT_REST_WITHIN: Duration = Duration::from_secs(12);

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
    let deadline = Instant::now() + AT_REST_WITHIN;
    loop {
        let audit = stage.audit().await?;
        let over = audit.beyond_hope() || audit.at_rest();
        if over || Instant::now() >= deadline {
            return Ok(breach(&audit));
        }
        sleep(Duration::from_millis(100)).await;
    }
}

fn breach(audit: &Audit) -> Option<Breach> {
    if let Some(found) = audit.findings.first() {
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
    if audit.owed > 0 {
        return Breach::new("I8", format!("{} events are still owed", audit.owed));
    }
    None
}
