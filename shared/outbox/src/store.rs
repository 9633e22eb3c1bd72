//! What a relay needs of an outbox. There are two: PostgreSQL, and the simulation's memory, in which a thousand
//! crashes take a second.

use std::future::Future;

use events::transport::{Outgoing, Refusal};
use uuid::Uuid;

use crate::Error;

/// An event in a relay's hands, for as long as its [`Hold`] lives.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// Its place in the outbox: the order of publishing within an aggregate.
    pub seq: i64,
    /// Its lane.
    pub lane: i16,
    /// Whose history it belongs to: the unit of ordering.
    pub aggregate_id: Uuid,
    /// What is to be published.
    pub message: Outgoing,
}

/// What came of reaching for lanes.
#[derive(Debug)]
pub enum Reach<H> {
    /// These lanes are ours while the hold lives, and something was due in each of them.
    Lanes(Vec<i16>, H),
    /// Something is due, in lanes that others hold.
    Busy,
    /// Nothing is due.
    Idle,
}

/// Where events wait to be published.
pub trait Store: Send {
    /// The right to a few lanes.
    type Hold<'store>: Hold + 'store
    where
        Self: 'store;

    /// Reaches for up to `share` lanes in which something is due, beginning the search at lane `start`, without
    /// waiting for any that is taken.
    fn reach(
        &mut self,
        start: i16,
        share: u8,
    ) -> impl Future<Output = Result<Reach<Self::Hold<'_>>, Error>> + Send;
}

/// The right to publish what is in some lanes, and to write down what became of it. Everything written is there after
/// [`commit`](Self::commit), or, if the hold is dropped or its owner dies, nothing is; the lanes are free either way.
pub trait Hold: Send {
    /// What is due in the lanes held, at most `per_lane` events from each, in order. An event is not due while an older
    /// one of its aggregate waits for another attempt, or is parked.
    fn due(
        &mut self,
        lanes: &[i16],
        per_lane: i64,
    ) -> impl Future<Output = Result<Vec<Claimed>, Error>> + Send;

    /// Writes down that the broker has confirmed these.
    fn published(&mut self, confirmed: &[Claimed]) -> impl Future<Output = Result<(), Error>> + Send;

    /// Writes down that the broker has refused this one: when to try again, or that it is parked.
    fn refused(
        &mut self,
        event: &Claimed,
        refusal: Refusal,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Makes it all true at once.
    fn commit(self) -> impl Future<Output = Result<(), Error>> + Send;
}
