//! A writing service: it changes an aggregate and inserts the event in one transaction, then wakes the relays.

use std::{sync::Arc, time::Duration};

use events::{Data, Envelope, Line, Money, OrderCreated, lane};
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    fault::Fault,
    history::{Actor, SERVICES},
    outbox_table::Row,
    process::{InjectedFault, Process, World},
    standby::Change,
    state::State,
};

/// An open transaction that has locked an aggregate. It is rolled back when it is dropped.
struct Transaction {
    world: Arc<World>,
    aggregate: usize,
    seq: Option<i64>,
    /// That of its session.
    epoch: u64,
    /// Its commit is in the log: it happens, whatever becomes of the writer.
    is_in_log: bool,
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let mut state = self.world.lock();
        if self.is_in_log || state.epoch != self.epoch {
            return;
        }
        state.aggregates[self.aggregate].locked = false;
        if let Some(seq) = self.seq
            && state.outbox.rows.get(&seq).is_some_and(|row| !row.committed)
        {
            state.outbox.rows.remove(&seq);
        }
    }
}

/// Writes `count` events, each to an aggregate drawn at random. A failure is not retried: its client got an error.
pub(crate) async fn write(process: Process, count: usize) {
    for _ in 0..count {
        let wait = process.world.lock().random.millis(0, 400);
        sleep(wait).await;
        let _ = write_one(&process).await;
    }
}

async fn write_one(process: &Process) -> Result<(), InjectedFault> {
    let world = &process.world;
    process.fault_point("begin the order's transaction", &[Fault::DatabaseError]).await?;
    let mut transaction = lock_aggregate(world).await;
    process.scheduling_point("after locking the aggregate").await;
    let wakes_early = {
        let mut state = world.lock();
        transaction.check_session(&state)?;
        transaction.seq = append(&mut state, process.actor, transaction.aggregate);
        state.injects(Fault::WakeEarly)
    };
    if wakes_early {
        wake_relays(&mut world.lock());
    }
    process.scheduling_point("after inserting the event").await;
    let delay = {
        let mut state = world.lock();
        state.injects(Fault::LateCommit).then(|| state.random.millis(20, 2_000))
    };
    if let Some(delay) = delay {
        sleep(delay).await;
    }
    process.fault_point("commit the order", &[Fault::DatabaseError, Fault::CommitLost]).await?;
    transaction.check_session(&world.lock())?;
    let wait = write_to_log(&mut world.lock(), &mut transaction);
    if let Some(wait) = wait {
        sleep(wait).await;
        world.lock().make_visible();
        transaction.check_session(&world.lock())?;
    } else if let Some(seq) = transaction.seq {
        world.lock().commit(process.actor, seq, transaction.aggregate);
    }
    drop(transaction);
    process.fault_point("after committing the order", &[Fault::CommitUnknown]).await?;
    if !wakes_early {
        wake_relays(&mut world.lock());
    }
    Ok(())
}

async fn lock_aggregate(world: &Arc<World>) -> Transaction {
    loop {
        {
            let mut state = world.lock();
            state.make_visible();
            let last = state.aggregates.len() - 1;
            let aggregate = state.random.between(0, last);
            if !state.aggregates[aggregate].locked {
                state.aggregates[aggregate].locked = true;
                let (world, epoch) = (Arc::clone(world), state.epoch);
                return Transaction { world, aggregate, seq: None, epoch, is_in_log: false };
            }
        }
        sleep(Duration::from_millis(1)).await;
    }
}

impl Transaction {
    /// Fails if the standby has taken over since it began.
    fn check_session(&self, state: &State) -> Result<(), InjectedFault> {
        if state.epoch == self.epoch { Ok(()) } else { Err(InjectedFault(Fault::FailOver)) }
    }
}

/// Writes the commit to the log, and sends it to the standby. Returns how long it waits for that before it is visible. `None`:
/// there is no standby.
fn write_to_log(state: &mut State, transaction: &mut Transaction) -> Option<Duration> {
    let seq = transaction.seq?;
    let row = Row { committed: true, ..state.outbox.rows.get(&seq)?.clone() };
    let received_at = state.replicate(Change::Inserted(seq, row))?;
    transaction.is_in_log = true;
    state.log.iter_mut().for_each(|log| log.entries.push(seq));
    state.waiting.push((received_at, seq, transaction.aggregate));
    Some(received_at.saturating_sub(state.now))
}

/// Inserts an event under the next `seq`. It is invisible to others until the commit.
fn append(state: &mut State, actor: Actor, aggregate: usize) -> Option<i64> {
    let aggregate = &state.aggregates[aggregate];
    let (aggregate, version) = (aggregate.id, aggregate.version + 1);
    let id = state.random.id();
    let traceparent = format!("00-{:032x}-{:016x}-01", id.as_u128(), id.as_u128() >> 64 | 1);
    let body = body(id, aggregate, version).ok()?;
    for service in 0..SERVICES {
        // An event that a service can never apply is as frequent as a handler that refuses an event once.
        if state.injects(Fault::HandlerPermanent) {
            state.inboxes[service].never_applicable.insert(id);
        }
    }
    if state.injects(Fault::AlwaysRefused) {
        state.broker.always_refused.push(id);
    } else if state.injects(Fault::TooLarge) {
        state.broker.too_large.push(id);
    }
    state.outbox.last_seq += 1;
    let seq = state.outbox.last_seq;
    let row = Row {
        id,
        aggregate,
        version,
        lane: lane(aggregate),
        body,
        traceparent,
        committed: false,
        available_at: state.now,
        attempts: 0,
        published: false,
        parked: false,
    };
    state.outbox.rows.insert(seq, row);
    state.note(actor, "appended", || format!("{id}, seq {seq}, version {version} of {aggregate}"));
    Some(seq)
}

/// The event's envelope. It is built here because `events::NewEvent` takes its id and time from outside the seed.
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
        source: OrderCreated::SOURCE.into(),
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

/// Wakes each relay, unless its wake-up is lost.
fn wake_relays(state: &mut State) {
    let wakes: Vec<_> = state.wakes.values().cloned().collect();
    for wake in wakes {
        if !state.injects(Fault::WakeLost) {
            wake.after_commit();
        }
    }
}
