//! What befalls the world as a whole, and what the broker and the databases do by themselves as time goes by.

use std::{sync::Arc, time::Duration};

use crate::{
    fault::Fault,
    lives::Lives,
    world::{SERVICES, State, World},
};

/// How often the weather changes.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// One tick of bad weather.
pub(crate) fn worsen(world: &Arc<World>, lives: &Lives) {
    lives.kill_one(world);
    let mut state = world.lock();
    let state = &mut *state;
    if state.strikes(Fault::BrokerAway) {
        state.broker.away_until = state.now + state.dice.millis(100, 20_000);
        in_flight_is_at_risk(state);
        state.cut_all();
    }
    if state.strikes(Fault::Unroutable) {
        state.broker.unbound = true;
        state.broker.unbound_half = state.dice.one_in(2);
        // Either until somebody connects, or for as long as somebody keeps deleting the bindings.
        state.broker.unbound_until = state.now + state.dice.millis(0, 8_000);
    }
    if state.strikes(Fault::DatabaseAway) {
        state.database_away = state.now + state.dice.millis(100, 20_000);
    }
    if state.strikes(Fault::SessionLost) {
        let service = state.dice.between(0, SERVICES - 1);
        let ids: Vec<_> = state.broker.queues[service].channels.keys().copied().collect();
        if !ids.is_empty() {
            let id = state.dice.pick(&ids);
            state.cut(service, id);
        }
    }
    state.broker_housekeeping();
}

fn in_flight_is_at_risk(state: &mut State) {
    let everybody: Vec<_> = state.in_hand.keys().copied().collect();
    for who in everybody {
        state.risk(who);
    }
}

/// The faults are over. What they left behind is still there.
pub(crate) fn heal(world: &Arc<World>) {
    let mut state = world.lock();
    let state = &mut *state;
    state.faults.raging = false;
    state.database_away = Duration::ZERO;
    state.broker.away_until = Duration::ZERO;
    state.broker.unbound_until = Duration::ZERO;
    // Whoever mended it declared the bindings: otherwise a publisher that never reconnects would not.
    state.broker.unbound = false;
    state.note(crate::history::Who::World, "healed", 0, String::new);
}
