//! What is asked about a system: whether it violates an invariant, whether a flaw does, and whether a recorded history is one
//! of the model's.

use std::collections::HashSet;

use flaws::Flaw;

use crate::{
    action::Action,
    graph::Graph,
    invariant::Invariant,
    system::{Explored, Step, System},
};

/// A violated invariant, with a trace to the violation.
#[derive(Debug)]
pub struct Violation {
    pub invariant: Invariant,
    pub trace: Vec<Action>,
}

/// What an exploration found.
#[derive(Debug)]
pub struct Exploration {
    /// Distinct states.
    pub states: usize,
    pub transitions: usize,
    /// The number of transitions to the state that is farthest from the first.
    pub depth: usize,
    pub quiescent: usize,
    pub violation: Option<Violation>,
}

/// Explores a system to the end, or to the first violation.
///
/// # Errors
/// When there are more states than the graph can number.
pub fn explore(system: Explored) -> anyhow::Result<Exploration> {
    let graph = Graph::explore(system)?;
    let violation = match &graph.violation {
        Some(violation) => Some(violation.clone()),
        None => graph.dead_end().map(|trace| (Invariant::NeverQuiescent, trace)),
    };
    Ok(Exploration {
        states: graph.states.len(),
        transitions: graph.transitions,
        depth: graph.depth(),
        quiescent: graph.quiescent_count(),
        violation: violation.map(|(invariant, trace)| Violation { invariant, trace }),
    })
}

/// How a flaw violates the invariant that its protection guards.
#[derive(Debug)]
pub struct Refutation {
    /// The fewest faults with which it does.
    pub faults: u8,
    /// A shortest trace with so many faults.
    pub violation: Violation,
}

/// Looks for a violation with no fault first, and with more while there is none: the simplest trace says most.
///
/// # Errors
/// As [`explore`].
pub fn refute(flaw: Flaw, max_faults: u8) -> anyhow::Result<Option<Refutation>> {
    let guarded = flaw.row().simulated.and_then(|simulated| simulated.in_model);
    for faults in 0..=max_faults {
        let found = explore(Explored::flawed(faults, flaw))?.violation;
        if let Some(violation) = found.filter(|found| Some(found.invariant.number()) == guarded) {
            return Ok(Some(Refutation { faults, violation }));
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
