//! Whether a flaw violates its invariant, and whether a recorded history is one of the model's.

use std::collections::HashSet;

use flaws::Flaw;

use crate::{
    action::Action,
    graph::{Violation, explore},
    system::{Explored, Step, System},
};

/// How a flaw violates the invariant that its protection guards: with how many faults at least, and a shortest trace with so
/// many. Looks for a violation with no fault first, and with more while there is none: the simplest trace says most.
///
/// # Errors
/// As [`explore`].
pub fn refute(flaw: Flaw, max_faults: u8) -> anyhow::Result<Option<(u8, Violation)>> {
    let guarded = flaw.row().simulated.and_then(|simulated| simulated.in_model);
    for faults in 0..=max_faults {
        let found = explore(Explored::flawed(faults, flaw))?.violation;
        if let Some(violation) = found.filter(|found| Some(found.invariant.number()) == guarded) {
            return Ok(Some((faults, violation)));
        }
    }
    Ok(None)
}

/// Follows the model along a history: the entries that an observer recorded. The model has more steps, for example a delivery
/// or the loss of a session. Those are silent: between two entries any number of them may have happened. So the model is
/// followed in all states at once that it can be in.
///
/// # Errors
/// The index of the first entry that is possible in none of these states, or that violates an invariant in each.
pub fn accept<const RELAYS: usize, const CHANNELS: usize>(
    system: &System<RELAYS, CHANNELS>,
    history: &[Action],
) -> Result<(), usize> {
    let mut states = vec![system.first_state()];
    let mut steps = vec![];
    for (index, entry) in history.iter().enumerate() {
        let mut reached: HashSet<_, ahash::RandomState> = states.iter().copied().collect();
        let mut following = HashSet::<_, ahash::RandomState>::default();
        while let Some(state) = states.pop() {
            system.steps(&state, Some(*entry), &mut steps);
            for Step { action, next, .. } in steps.drain(..).filter(|step| step.next.violated.is_none()) {
                if action.recorded().is_some() {
                    following.insert(next);
                } else if reached.insert(next) {
                    states.push(next);
                }
            }
        }
        if following.is_empty() {
            return Err(index);
        }
        states.extend(following);
    }
    Ok(())
}
