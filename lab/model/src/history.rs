//! Whether a recorded history is one of the model's.
//!
//! A history has the entries that an observer can record. The model has more transitions, such as a delivery or the loss
//! of a session. Those are silent: between two entries any number of them may have happened. So the model is followed in
//! all states at once that it can be in.

use std::collections::HashSet;

use stateright::Model;

use crate::{
    action::{Action, Sent},
    answers::Outcome,
    events::{EVENTS, Event, Events},
    state::State,
    system::System,
};

/// What an observer records. Relays and channels are numbered as in [`Action`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    Committed(Event),
    Claimed(usize, Events),
    Enqueued(Event),
    Concluded(usize, [Option<Outcome>; EVENTS]),
    /// A relay committed its marks: what it marked as published, and as refused.
    Marked(usize, Events, Events),
    RelayCrashed(usize),
    Subscribed(usize),
    Closed(usize),
    Applied(usize, Event),
    SetAside(usize, Event),
    Acknowledged(usize, Event),
    ConsumerCrashed(usize),
}

/// The first entry that no state of the model allows.
#[derive(Debug)]
pub struct Rejection {
    pub index: usize,
    pub entry: Entry,
}

/// Follows the model along a history. Returns the largest number of states that it could be in at once.
///
/// # Errors
/// [`Rejection`]: after all possible silent transitions, the entry is not enabled, or it violates an invariant.
pub fn accept<const RELAYS: usize, const CHANNELS: usize>(
    system: &System<RELAYS, CHANNELS>,
    history: &[Entry],
) -> Result<usize, Rejection> {
    let mut states = system.init_states();
    let mut largest = 0;
    for (index, entry) in history.iter().enumerate() {
        let mut reached: HashSet<_, ahash::RandomState> = states.iter().copied().collect();
        let mut next = HashSet::<_, ahash::RandomState>::default();
        let mut actions = vec![];
        while let Some(state) = states.pop() {
            system.actions(&state, &mut actions);
            for action in actions.drain(..) {
                let recorded = recorded(&state, action);
                if recorded.is_some_and(|recorded| recorded != *entry) {
                    continue;
                }
                let Some(following) = system.next_state(&state, action) else { continue };
                if following.violated.is_some() {
                    continue;
                }
                if recorded.is_some() {
                    next.insert(following);
                } else if reached.insert(following) {
                    states.push(following);
                }
            }
        }
        largest = largest.max(reached.len());
        if next.is_empty() {
            return Err(Rejection { index, entry: *entry });
        }
        states.extend(next);
    }
    Ok(largest)
}

/// The entry that an observer records for an action, or `None` if it is silent.
fn recorded<const R: usize, const C: usize>(state: &State<R, C>, action: Action) -> Option<Entry> {
    let next = |channel: usize| state.consumers[channel].next();
    Some(match action {
        Action::Commit(event) => Entry::Committed(event),
        Action::Claim(relay, events) => Entry::Claimed(relay, events),
        Action::Send(_, event, Sent::Stored | Sent::StoredAndRefused)
        | Action::ArriveLate(event)
        | Action::Duplicate(event) => Entry::Enqueued(event),
        Action::Conclude(relay, outcomes) => Entry::Concluded(relay, outcomes),
        Action::CommitMarks(relay) => {
            Entry::Marked(relay, state.relays[relay].confirmed, state.relays[relay].refused)
        }
        Action::CrashRelay(relay) => Entry::RelayCrashed(relay),
        Action::Subscribe(channel) => Entry::Subscribed(channel),
        Action::Close(channel) => Entry::Closed(channel),
        Action::Apply(channel) | Action::ApplyUnknown(channel) => Entry::Applied(channel, next(channel)?),
        Action::SetAside(channel) => Entry::SetAside(channel, next(channel)?),
        Action::Acknowledge(channel) => {
            Entry::Acknowledged(channel, state.consumers[channel].delivered.get(0))
        }
        Action::CrashConsumer(channel) => Entry::ConsumerCrashed(channel),
        Action::Send(..)
        | Action::CommitUnheard(_)
        | Action::Mark(_)
        | Action::LoseSession(_)
        | Action::EndStep(_)
        | Action::Sleep(_)
        | Action::EndBackoff(_)
        | Action::Dedupe(_) => return None,
    })
}
