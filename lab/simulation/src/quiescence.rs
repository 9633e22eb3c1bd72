//! Quiescence: nothing is pending anywhere, so that every published event must be settled at every service.

use crate::{actor::SERVICES, state::State};

/// Says what is still pending; `None` means that the world is quiescent.
pub(crate) fn pending_work(state: &State) -> Option<String> {
    for (seq, row) in &state.outbox.rows {
        if !row.committed {
            return Some(format!("event {seq} is neither committed nor rolled back"));
        }
        if !row.published && !state.outbox.is_parked_or_behind(*seq, row) {
            return Some(format!("event {seq}, {}, is not published", row.id));
        }
    }
    if !state.broker.late.is_empty() {
        return Some("messages have not arrived at the broker".into());
    }
    for service in 0..SERVICES {
        let queue = &state.broker.queues[service];
        let ready = queue.returned.len() + queue.ready.len();
        let unacknowledged: usize = queue.channels.values().map(|channel| channel.unacknowledged.len()).sum();
        if ready + unacknowledged > 0 {
            return Some(format!(
                "service {service} has {ready} ready and {unacknowledged} unacknowledged messages"
            ));
        }
    }
    None
}

/// Checks I3 in a quiescent world: every published event is applied or set aside at every service.
pub(crate) fn check_all_settled(state: &mut State) {
    for row in state.outbox.rows.values().filter(|row| row.published) {
        for service in 0..SERVICES {
            if !state.judge.is_settled(service, row.id) {
                state.judge.violate_safety(format!(
                    "I3: {} was published, but service {service} neither applied it nor set it aside",
                    row.id
                ));
            }
        }
    }
}
