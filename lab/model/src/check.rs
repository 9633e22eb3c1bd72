//! What is asked about a system: safety (by stateright) and quiescence (on the graph of all states), whether a flaw is
//! refuted, and whether a recorded history is one of the model's.

use std::{collections::HashSet, thread};

use anyhow::anyhow;
use flaws::Flaw;
use stateright::{Checker, Model};

use crate::{
    action::Action,
    graph::Graph,
    invariant::Invariant,
    system::{Explored, SAFETY, Step, System},
};

/// A violated invariant, with a trace to the violation.
#[derive(Debug)]
pub struct Violation {
    pub invariant: Invariant,
    pub trace: Vec<Action>,
}

/// What a complete exploration found.
#[derive(Debug)]
pub struct Exploration {
    /// Distinct states, counted by stateright.
    pub states: usize,
    /// The same, counted by the graph.
    pub states_in_graph: usize,
    pub transitions: usize,
    /// The number of transitions to the state that is farthest from the first.
    pub depth: usize,
    pub quiescent: usize,
    pub violation: Option<Violation>,
}

/// Explores a system to the end. The two checks run side by side and share nothing, so
/// that each counts the states for itself.
///
/// # Errors
/// When there are more states than the graph can number.
pub fn explore(system: &Explored) -> anyhow::Result<Exploration> {
    thread::scope(|scope| {
        let safety = scope.spawn(|| check_safety(system.clone()));
        let graph = Graph::explore(system.clone())?;
        let never_quiescent = check_quiescence(&graph);
        let (states, violation) =
            safety.join().map_err(|_| anyhow!("failed to check safety: a thread panicked"))?;
        Ok(Exploration {
            states,
            states_in_graph: graph.states.len(),
            transitions: graph.transitions,
            depth: graph.depth(),
            quiescent: graph.quiescent_count(),
            violation: violation.or(never_quiescent),
        })
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
    let is_about_liveness = flaw
        .row()
        .simulated
        .is_some_and(|simulated| simulated.in_model == Invariant::NeverQuiescent.number());
    for faults in 0..=max_faults {
        let system = Explored::flawed(faults, flaw);
        let violation = if is_about_liveness {
            check_quiescence(&Graph::explore(system)?)
        } else {
            check_safety(system).1
        };
        if let Some(violation) = violation {
            return Ok(Some(Refutation { faults, violation }));
        }
    }
    Ok(None)
}

/// Explores with stateright, until the end or the first violation. With one thread the search is breadth-first, and the
/// trace is a shortest one.
fn check_safety(system: Explored) -> (usize, Option<Violation>) {
    let checker = system.checker().threads(1).spawn_bfs().join();
    let violation = checker.discovery(SAFETY).and_then(|path| {
        let invariant = path.last_state().violated?;
        Some(Violation { invariant, trace: path.into_actions().iter().map(|step| step.action).collect() })
    });
    (checker.unique_state_count(), violation)
}

fn check_quiescence(graph: &Graph) -> Option<Violation> {
    graph.dead_end().map(|trace| Violation { invariant: Invariant::NeverQuiescent, trace })
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
    let mut states = system.init_states();
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
