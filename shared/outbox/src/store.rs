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

/// What a claim found.
#[derive(Debug)]
pub enum ClaimResult<T> {
    /// These lanes are locked while the transaction lives, and each had a claimable event.
    Lanes {
        lanes: Vec<i16>,
        /// Whether other lanes had one too: held by another relay, or more than were asked for.
        others: bool,
        transaction: T,
    },
    /// Events are claimable, in lanes that other relays hold.
    Busy,
    /// No event is claimable.
    Idle,
}

/// An outbox, as a relay sees it.
pub trait Store: Send {
    type Transaction<'store>: OutboxTransaction + 'store
    where
        Self: 'store;

    /// Locks up to `max_lanes` lanes that have claimable events, beginning the search at `first_lane`. Does not wait for
    /// lanes that are locked by others.
    fn claim_lanes(
        &mut self,
        first_lane: i16,
        max_lanes: u8,
    ) -> impl Future<Output = Result<ClaimResult<Self::Transaction<'_>>, Error>> + Send;
}

/// An open transaction that holds lanes. Its marks become true together at [`commit`](Self::commit). If it is dropped or
/// its owner dies, none does, and the lanes are free either way.
pub trait OutboxTransaction: Send {
    /// Reads the claimable events of the lanes held, at most `per_lane` from each, in order. An event is not claimable
    /// while an older one of its aggregate backs off or is parked.
    fn claimable(
        &mut self,
        lanes: &[i16],
        per_lane: i64,
    ) -> impl Future<Output = Result<Vec<ClaimedEvent>, Error>> + Send;

    /// Writes an event as it is: whether marks can be written.
    fn try_write(&mut self, event: &ClaimedEvent) -> impl Future<Output = Result<(), Error>> + Send;

    /// Marks events that the broker has confirmed.
    fn mark_published(
        &mut self,
        confirmed: &[ClaimedEvent],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Records which events the broker has refused, and why: when to try each again, or that it is parked.
    fn mark_refused(
        &mut self,
        refused: &[(ClaimedEvent, Refusal)],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    fn commit(self) -> impl Future<Output = Result<(), Error>> + Send;
}
