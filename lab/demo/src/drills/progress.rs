//! The figures of a drill's progress line, read from the records.

use serde::Deserialize;

use crate::running_system::RunningSystem;

#[derive(Clone, Copy, Deserialize)]
pub(super) struct Progress {
    pending: u64,
    inventory: u64,
    billing: u64,
    confirmed: u64,
    cancelled: u64,
}

const QUERY: &str = "select json_build_object(
    'pending', (select count(*) from orders.outbox where published_at is null and parked_at is null)
             + (select count(*) from inventory.outbox where published_at is null and parked_at is null)
             + (select count(*) from billing.outbox where published_at is null and parked_at is null),
    'inventory', (select count(*) from inventory.reservations),
    'billing', (select count(*) from billing.payments where state <> 'asked'),
    'confirmed', (select count(*) from orders.orders where status = 'confirmed'),
    'cancelled', (select count(*) from orders.orders where status = 'cancelled'))::text";

impl Progress {
    /// `None`: the database does not answer.
    pub(super) async fn read(system: &RunningSystem) -> Option<Self> {
        serde_json::from_str(&system.read(QUERY).await.ok()?).ok()
    }

    /// What was done since an earlier reading. What is unknown is shown as `?`, never as 0.
    pub(super) fn figures(now: Option<Self>, before: Option<Self>) -> String {
        let number = |known: Option<u64>| known.map_or("?".to_owned(), |number| number.to_string());
        let since = |figure: fn(Self) -> u64| {
            number(now.zip(before).map(|(now, before)| figure(now).saturating_sub(figure(before))))
        };
        format!(
            "events pending {:>5}   answered: inventory {:>5}, billing {:>5}   confirmed {:>5}, cancelled {:>4}",
            number(now.map(|now| now.pending)),
            since(|progress| progress.inventory),
            since(|progress| progress.billing),
            since(|progress| progress.confirmed),
            since(|progress| progress.cancelled),
        )
    }
}
