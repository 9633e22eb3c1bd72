//! What waits while the load goes on. Once nothing new arrives, a system also does what it had forgotten, so a drill that judges
//! only then does not notice.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::running_system::RunningSystem;

/// A kind of thing that waits.
pub(super) struct Kind {
    pub(super) what: &'static str,
    /// Since when the oldest waits.
    since: &'static str,
    /// How long one that waited at the repair may wait after it.
    pub(super) bound: Duration,
}

pub(super) static KINDS: [Kind; 3] = [
    Kind {
        what: "a payment whose call is due",
        since: "select min(due_at) from billing.payments where state in ('asked', 'refunding')",
        bound: Duration::from_secs(30),
    },
    Kind {
        what: "an event that is pending",
        since: "select min(greatest(created_at, available_at))
                from (select * from orders.outbox union all select * from inventory.outbox
                      union all select * from billing.outbox) as event
                where published_at is null and parked_at is null",
        bound: Duration::from_secs(30),
    },
    // A payment backs off for up to half a minute.
    Kind {
        what: "an order that is not answered",
        since: "select min(placed_at) from orders.orders where status in ('pending', 'reserved', 'paid')",
        bound: Duration::from_secs(60),
    },
];

/// How long the oldest of each kind has waited, in seconds: zero or less if none has.
pub(super) async fn ages(system: &RunningSystem) -> Result<Vec<f64>> {
    let age = |kind: &Kind| {
        format!("coalesce(extract(epoch from clock_timestamp() - ({})), 0)::float8", kind.since)
    };
    let ages: Vec<_> = KINDS.iter().map(age).collect();
    let read = system.read(&format!("select json_build_array({})::text", ages.join(", "))).await?;
    serde_json::from_str(&read).with_context(|| format!("`{read}` are not ages"))
}
