//! The faults of the environment: outages of the broker and the databases, lost bindings, and crashes at any await.

use std::{sync::Arc, time::Duration};

use crate::{
    actor::{Actor, SERVICES},
    broker_actions::{close_all_connections, close_channel, run_due_work},
    fault::Fault,
    process_lifecycle::Processes,
    world::World,
};

/// How often the environment's faults are drawn.
pub(crate) const TICK_INTERVAL: Duration = Duration::from_millis(100);

/// Draws which faults of the environment begin now.
pub(crate) fn tick(world: &Arc<World>, processes: &Processes) {
    processes.crash_one(world);
    let mut state = world.lock();
    let state = &mut *state;
    if state.injects(Fault::BrokerUnavailable) {
        state.broker.unavailable_until = state.now + state.random.millis(100, 20_000);
        let actors: Vec<_> = state.claimed.keys().copied().collect();
        for actor in actors {
            state.allow_duplicates_of_claimed(actor);
        }
        close_all_connections(state);
    }
    if state.injects(Fault::Unroutable) {
        state.broker.unbound = true;
        state.broker.unbound_half = state.random.one_in(2);
        // The bindings are missing until a client connects, but at least for this long.
        state.broker.unbound_until = state.now + state.random.millis(0, 8_000);
    }
    if state.injects(Fault::DatabaseUnavailable) {
        state.databases_unavailable_until = state.now + state.random.millis(100, 20_000);
    }
    if state.injects(Fault::ConsumerDisconnected) {
        let service = state.random.between(0, SERVICES - 1);
        let ids: Vec<_> = state.broker.queues[service].channels.keys().copied().collect();
        if !ids.is_empty() {
            let id = state.random.pick(&ids);
            close_channel(state, service, id);
        }
    }
    run_due_work(state);
}

/// Ends the fault period: no further fault is injected, and outages end. The consequences of earlier faults stay.
pub(crate) fn stop_faults(world: &Arc<World>) {
    let mut state = world.lock();
    let state = &mut *state;
    state.faults.enabled = false;
    state.databases_unavailable_until = Duration::ZERO;
    state.broker.unavailable_until = Duration::ZERO;
    state.broker.unbound_until = Duration::ZERO;
    // The end of the outage includes the bindings: a publisher that stays connected would not declare them.
    state.broker.unbound = false;
    state.note(Actor::Environment, "faults stopped", 0, String::new);
}
