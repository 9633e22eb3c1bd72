//! What must happen in the end: whether the world has come to rest, and if not, what is missing.

use crate::{
    outbox_rows::Outbox,
    world::{SERVICES, State},
};

/// `Err` says what is still to come.
pub(crate) fn backlog(state: &State) -> Result<(), String> {
    for (seq, row) in &state.outbox.rows {
        if !row.committed {
            return Err(format!("event {seq} is neither committed nor rolled back"));
        }
        if !row.published && !state.outbox.is_parked_or_behind(*seq, row) {
            return Err(format!("event {seq}, {}, is still to be published", row.id));
        }
    }
    if !state.broker.late.is_empty() {
        return Err("messages are still on their way".into());
    }
    for service in 0..SERVICES {
        let queue = &state.broker.queues[service];
        let unanswered: usize = queue.channels.values().map(|channel| channel.unanswered.len()).sum();
        if !queue.ready.is_empty() || unanswered > 0 {
            return Err(format!(
                "service {service} has {} and {unanswered} messages to go",
                queue.ready.len()
            ));
        }
    }
    Ok(())
}

/// At rest, nothing may be missing: every event that was published is applied or set aside everywhere.
pub(crate) fn nothing_is_missing(state: &mut State) {
    let State { outbox, judge, .. } = state;
    let Outbox { rows, .. } = outbox;
    for row in rows.values().filter(|row| row.published) {
        for service in 0..SERVICES {
            if !judge.is_settled(service, row.id) {
                judge.broken(
                    true,
                    format!("I3: {} was published, and service {service} never got it", row.id),
                );
            }
        }
    }
}
