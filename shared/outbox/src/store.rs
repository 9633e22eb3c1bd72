//! What a relay needs of an outbox. PostgreSQL implements it, and so does the simulation's memory.

use std::{future::Future, time::SystemTime};

use messaging::{Outgoing, Refusal};
use uuid::Uuid;

use crate::Error;

/// An event that a relay may publish while its [`OutboxTransaction`] is open.
#[derive(Debug, Clone)]
pub struct ClaimedEvent {
    /// The order of publishing within an aggregate.
    pub seq: i64,
    pub lane: i16,
    /// The unit of ordering.
    pub aggregate_id: Uuid,
    /// When it was written, by the database's clock.
    pub created_at: SystemTime,
    /// Whether the broker has refused it before.
    pub refused_before: bool,
    pub message: Outgoing,
}

/// How much one claim takes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The most lanes that are locked, 1 to 16.
    pub lanes: u8,
    /// The most events that are read, shared evenly by the locked lanes.
    pub batch: u16,
}

/// What a claim found.
#[derive(Debug)]
pub enum Claim<T> {
    /// Nothing is claimable.
    Idle,
    /// Other relays hold what is claimable, or have just published it.
    Busy,
    /// Claimable events in the order of `seq`. Their lanes are locked while the transaction lives.
    Events {
        events: Vec<ClaimedEvent>,
        /// Whether there may be others: in lanes that are not locked here, or behind these.
        more: bool,
        transaction: T,
    },
}

/// An outbox, as a relay sees it.
pub trait Store: Send {
    type Transaction<'store>: OutboxTransaction + 'store
    where
        Self: 'store;

    /// Locks lanes that have claimable events, and reads these. Does not wait for lanes that others hold. An event is not
    /// claimable while an older one of its aggregate backs off or is parked.
    fn claim(
        &mut self,
        limits: Limits,
    ) -> impl Future<Output = Result<Claim<Self::Transaction<'_>>, Error>> + Send;
}

/// An open transaction that holds lanes. Its marks become true together at [`commit`](Self::commit). If it is dropped or
/// its owner dies, none does, and the lanes are free either way.
pub trait OutboxTransaction: Send {
    /// Writes an event as it is: whether marks can be written.
    fn try_write(&mut self, event: &ClaimedEvent) -> impl Future<Output = Result<(), Error>> + Send;

    /// Records which events the broker has refused, and why: when to try each again, or that it is parked.
    fn mark_refused(
        &mut self,
        refused: &[(ClaimedEvent, Refusal)],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Marks the events that the broker has confirmed, and commits.
    fn commit(self, confirmed: &[ClaimedEvent]) -> impl Future<Output = Result<(), Error>> + Send;
}
