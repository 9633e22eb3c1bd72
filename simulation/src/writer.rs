//! A service that writes: the change of an aggregate and its event in one transaction, and then a ring at the relays.

use std::{sync::Arc, time::Duration};

use events::{Data, Envelope, Line, Money, OrderCreated, lane};
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    fault::Fault,
    history::Who,
    outbox_rows::Row,
    world::{Owner, SERVICES, State, World},
};

/// A row of the writer's own: changes of an aggregate wait for each other on it.
pub(crate) struct Aggregate {
    pub(crate) id: Uuid,
    version: i32,
    locked: bool,
}

impl Aggregate {
    pub(crate) fn new(id: Uuid) -> Self {
        Self { id, version: 0, locked: false }
    }
}

/// An open transaction that holds an aggregate, and is rolled back when it is dropped.
struct Transaction {
    world: Arc<World>,
    aggregate: usize,
    seq: Option<i64>,
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let mut state = self.world.lock();
        state.aggregates[self.aggregate].locked = false;
        if let Some(seq) = self.seq
            && state.outbox.rows.get(&seq).is_some_and(|row| !row.committed)
        {
            state.outbox.rows.remove(&seq);
        }
    }
}

/// Writes so many events, each to an aggregate of its choice. A failure is answered to the client, who does not insist.
pub(crate) async fn write(owner: Owner, events: usize) {
    for _ in 0..events {
        let pause = owner.world.lock().dice.millis(0, 400);
        sleep(pause).await;
        let _ = write_one(&owner).await;
    }
}

async fn write_one(owner: &Owner) -> Result<(), crate::world::Injected> {
    let world = &owner.world;
    owner.gate("begin an order", &[Fault::DatabaseError]).await?;
    let mut transaction = lock_aggregate(owner).await;
    owner.pause("the aggregate is locked").await;
    let early = {
        let mut state = world.lock();
        let state = &mut *state;
        transaction.seq = append(state, owner.who, transaction.aggregate);
        state.strikes(Fault::WakeEarly)
    };
    if early {
        ring(&mut world.lock());
    }
    owner.pause("the event is written").await;
    let late = {
        let mut state = world.lock();
        state.strikes(Fault::LateCommit).then(|| state.dice.millis(20, 2_000))
    };
    if let Some(late) = late {
        sleep(late).await;
    }
    owner.gate("commit an order", &[Fault::DatabaseError, Fault::CommitLost]).await?;
    {
        let mut state = world.lock();
        let state = &mut *state;
        let aggregate = &mut state.aggregates[transaction.aggregate];
        aggregate.version += 1;
        let row = transaction.seq.and_then(|seq| state.outbox.rows.get_mut(&seq));
        if let Some(row) = row {
            row.committed = true;
            state.judge.committed(row);
            let (id, version) = (row.id, row.version);
            state.note(owner.who, "committed", id.as_u128(), || format!("{id}, version {version}"));
        }
    }
    drop(transaction);
    owner.gate("the order is committed", &[Fault::CommitUnknown]).await?;
    if !early {
        ring(&mut world.lock());
    }
    Ok(())
}

async fn lock_aggregate(owner: &Owner) -> Transaction {
    let world = Arc::clone(&owner.world);
    loop {
        {
            let mut state = world.lock();
            let last = state.aggregates.len() - 1;
            let aggregate = state.dice.between(0, last);
            if !state.aggregates[aggregate].locked {
                state.aggregates[aggregate].locked = true;
                return Transaction { world: Arc::clone(&owner.world), aggregate, seq: None };
            }
        }
        sleep(Duration::from_millis(1)).await;
    }
}

/// Draws the next number, and writes the event under it. Nobody sees it before the commit.
fn append(state: &mut State, who: Who, aggregate: usize) -> Option<i64> {
    let aggregate = &state.aggregates[aggregate];
    let (aggregate, version) = (aggregate.id, aggregate.version + 1);
    let id = state.dice.id();
    let traceparent = format!("00-{:032x}-{:016x}-01", id.as_u128(), id.as_u128() >> 64 | 1);
    let body = body(id, aggregate, version).ok()?;
    for service in 0..SERVICES {
        // Some of what a service can never apply, as often as handlers say so on a whim.
        if state.strikes(Fault::HandlerPermanent) {
            state.inboxes[service].poison.insert(id);
        }
    }
    if state.strikes(Fault::AlwaysRefused) {
        state.broker.always_refused.push(id);
    } else if state.strikes(Fault::TooLarge) {
        state.broker.too_large.push(id);
    }
    state.outbox.next_seq += 1;
    let seq = state.outbox.next_seq;
    let row = Row {
        id,
        aggregate,
        version,
        lane: lane(aggregate),
        body,
        traceparent,
        committed: false,
        available: state.now,
        attempts: 0,
        published: false,
        parked: false,
    };
    state.outbox.rows.insert(seq, row);
    state
        .note(who, "appended", id.as_u128(), || format!("{id}, seq {seq}, version {version} of {aggregate}"));
    Some(seq)
}

/// The envelope, made here and not by `events::Draft`, which takes its id and its time from outside the seed.
fn body(id: Uuid, aggregate: Uuid, version: i32) -> Result<Vec<u8>, serde_json::Error> {
    let line = Line { sku: "tea".into(), quantity: 2, unit_price: 125 };
    let data = OrderCreated {
        order_id: aggregate,
        customer_id: aggregate,
        lines: vec![line],
        total: Money { amount: 250, currency: "EUR".into() },
    };
    serde_json::to_vec(&Envelope {
        specversion: "1.0".into(),
        id,
        source: "/simulation".into(),
        event_type: OrderCreated::TYPE.into(),
        subject: aggregate,
        time: time::OffsetDateTime::UNIX_EPOCH,
        datacontenttype: "application/json".into(),
        dataschema: format!("urn:shop:{}:{}", OrderCreated::TYPE, OrderCreated::VERSION),
        sequence: version,
        traceparent: None,
        data,
    })
}

/// Rings at every relay, except where the ring is lost.
fn ring(state: &mut State) {
    let wakes: Vec<_> = state.wakes.values().cloned().collect();
    for wake in wakes {
        if !state.strikes(Fault::WakeLost) {
            wake.after_commit();
        }
    }
}
