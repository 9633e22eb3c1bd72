//! An outbox, as a relay sees it.

use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::{Outgoing, Refusal, Wake};

/// An event that a relay may publish while its [`OutboxTransaction`] is open.
#[derive(Debug, Clone)]
pub struct ClaimedEvent {
    /// The order of publishing within an aggregate.
    pub seq: i64,
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
pub enum Claim<T> {
    /// Nothing is claimable.
    Idle,
    /// Other relays hold the claimable events, or have just published them. From the log: a commit is not visible yet.
    Busy,
    /// Claimable events in the order of `seq`. Their lanes are locked while the transaction lives.
    Events {
        events: Vec<ClaimedEvent>,
        /// Whether there may be others: in lanes that are not locked here, or behind these.
        more: bool,
        transaction: T,
    },
}

/// What a relay needs from an outbox.
pub trait Store: Send {
    type Transaction<'store>: OutboxTransaction + 'store
    where
        Self: 'store;

    /// Locks lanes that have claimable events, at most so many of the 16, and reads these events, at most `batch`, shared
    /// evenly by the locked lanes. Does not wait for lanes that others hold. An event is not claimable while an older one
    /// of its aggregate backs off or is parked.
    fn claim(
        &mut self,
        lanes: u8,
        batch: u16,
    ) -> impl Future<Output = Result<Claim<Self::Transaction<'_>>, Error>> + Send;

    /// Waits after a claim that found nothing until there may be something, or for as long as `poll`. `worked` is how
    /// long the relay's last step was at work, without its wait for the broker.
    fn wait(&mut self, wake: &Wake, worked: Duration, poll: Duration) -> impl Future<Output = ()> + Send {
        wake.woken(worked, poll)
    }

    /// Gives up what keeps other relays from working, because this one has no broker.
    fn release(&mut self) {}
}

/// An open transaction that holds lanes. Its marks become true together at [`commit`](Self::commit). If it is dropped or
/// its owner dies, none does, and the lanes are free either way.
pub trait OutboxTransaction: Send {
    /// Writes some of these events as they are: whether marks can be written.
    fn try_write(&mut self, events: &[ClaimedEvent]) -> impl Future<Output = Result<(), Error>> + Send;

    /// Records which events the broker has refused, and why: when to try each again, or that it is parked.
    fn mark_refused(
        &mut self,
        refused: &[(ClaimedEvent, Refusal)],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Marks the events that the broker has confirmed, and commits.
    fn commit(self, confirmed: &[ClaimedEvent]) -> impl Future<Output = Result<(), Error>> + Send;
}

/// The limits of the waits after the first, second, … failed attempt of one event, in seconds. Each wait is drawn evenly
/// from zero to its limit (full jitter). The length is the most attempts, so the last wait never happens: the schedule
/// takes ten minutes on average, and nineteen at most.
pub const RETRY_SECONDS: [f64; 13] =
    [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 300.0, 300.0, 300.0];

/// The most attempts that negative acknowledgements use up: the event is tried again within a minute, and never parked for
/// them. Its other attempts remain for a refusal that is its own.
pub const MAX_NACKED_ATTEMPTS: u8 = 7;

/// A failed operation on the outbox: `failed to <verb> <object>`, with its cause.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    what: &'static str,
    pub(crate) source: Box<dyn std::error::Error + Send + Sync>,
}

impl Error {
    pub fn new(what: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { what, source: source.into() }
    }
}
