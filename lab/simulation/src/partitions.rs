//! The number of partitions, as `rabbitmq::Endpoint::check` records and changes it.

use std::future::pending;

use flaws::Flaw;
use tokio::time::sleep;

use crate::{process::Process, queue::BrokerState, sometimes::Sometimes};

/// How often a process tries to change the number before an operator gives up: `CHANGE_TRIES` in `rabbitmq::number`.
const CHANGE_TRIES: u32 = 5;

/// Returns the number of partitions with which a process works: the one that it was started with, once the broker accepts it.
/// If the queues of the recorded number stay in use, an operator starts processes with that one again.
pub(crate) async fn agree_on_partitions(process: &Process) -> u8 {
    let mut tries = 0;
    loop {
        process.scheduling_point("check the number of partitions").await;
        let wanted = process.world.lock().broker.wanted_partitions;
        if change(process, wanted).await || process.world.stop.is_cancelled() {
            return wanted;
        }
        let pause = {
            let state = &mut *process.world.lock();
            tries += 1;
            if tries > CHANGE_TRIES {
                tries = 0;
                state.broker.wanted_partitions = state.broker.partitions;
                state.reach(Sometimes::PartitionsKept);
            }
            state.random.millis(200, 1_000)
        };
        sleep(pause).await;
    }
}

/// Ends a process whose number another one has replaced: an operator restarts it. While the number is being changed it waits.
pub(crate) async fn restart_with_other_partitions(process: &Process, partitions: u8) {
    let is_replaced = {
        let broker = &process.world.lock().broker;
        broker.partitions != partitions && !broker.is_changing
    };
    if is_replaced {
        process.crash.notify_one();
        pending::<()>().await;
    }
}

/// Allows other processes to change the number, also after a crash.
struct ChangeLock<'process>(&'process Process);

impl Drop for ChangeLock<'_> {
    fn drop(&mut self) {
        self.0.world.lock().broker.change_is_locked = false;
    }
}

/// Changes the number to `wanted`, unless it is that already. `false`: the broker is unavailable, another process changes it, or
/// the queues of the recorded number are in use.
async fn change(process: &Process, wanted: u8) -> bool {
    let current = {
        let state = &mut *process.world.lock();
        if state.broker_is_unavailable() {
            return false;
        }
        if state.broker.accepts(wanted) {
            return true;
        }
        if std::mem::replace(&mut state.broker.change_is_locked, true) {
            return false;
        }
        state.broker.partitions
    };
    let _lock = ChangeLock(process);
    if wanted == current {
        // Another process was interrupted.
        let broker = &mut process.world.lock().broker;
        (broker.bound, broker.is_changing) = (Some(current), false);
        return true;
    }
    let checks = !process.world.has(Flaw::PartitionsChangedInUse);
    if checks && is_in_use(&process.world.lock().broker, current) {
        return false;
    }
    process.world.lock().broker.is_changing = true;
    process.scheduling_point("record that the number of partitions is being changed").await;
    if process.world.lock().broker_is_unavailable() {
        return false;
    }
    process.world.lock().broker.bound = None;
    process.scheduling_point("unbind the queues").await;
    let state = &mut *process.world.lock();
    if state.broker_is_unavailable() {
        return false;
    }
    let is_in_use = checks && is_in_use(&state.broker, current);
    if is_in_use {
        state.broker.bound = Some(current);
    } else {
        state.broker.partitions = wanted;
        state.reach(Sometimes::PartitionsChanged);
    }
    state.broker.is_changing = false;
    state.note(process.actor, "number of partitions", || format!("{current} to {wanted}: {}", !is_in_use));
    !is_in_use
}

/// Whether a queue of this number of partitions has a message or a consumer.
fn is_in_use(broker: &BrokerState, partitions: u8) -> bool {
    broker.queues.iter().filter(|queue| queue.partitions == partitions).any(|queue| {
        let is_consumed = queue.channels.values().any(|channel| channel.is_open);
        is_consumed || !queue.ready.is_empty() || !queue.returned.is_empty()
    })
}
