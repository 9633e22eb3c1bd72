//! The two checks of a system: safety by stateright, and quiescence on the graph of all states.

use std::thread;

use anyhow::anyhow;
use stateright::{Checker, Model, Path};

use crate::{
    action::Action,
    graph::Graph,
    invariant::Invariant,
    mutant::Mutant,
    state::State,
    system::{SAFETY, System},
};

/// The system that is explored: two relays, and two consuming instances.
pub type Explored = System<2, 2>;

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
        let dead_end = graph.dead_end();
        let (states, violation) =
            safety.join().map_err(|_| anyhow!("failed to check safety: a thread panicked"))?;
        let never_quiescent = |trace| Violation { invariant: Invariant::NeverQuiescent, trace };
        Ok(Exploration {
            states,
            states_in_graph: graph.state_count(),
            transitions: graph.transitions,
            depth: graph.depth(),
            quiescent: graph.quiescent_count(),
            violation: violation.or(dead_end.map(never_quiescent)),
        })
    })
}

/// A mutant that violates the invariant that its protection guards.
#[derive(Debug)]
pub struct Refutation {
    pub mutant: Mutant,
    /// The fewest faults with which it does.
    pub faults: u8,
    /// A shortest trace with so many faults.
    pub violation: Violation,
}

/// Looks for a violation with no fault first, and with more while there is none: the simplest trace says most.
///
/// # Errors
/// As [`explore`].
pub fn refute(mutant: Mutant, max_faults: u8) -> anyhow::Result<Option<Refutation>> {
    for faults in 0..=max_faults {
        let system = Explored::mutated(faults, mutant);
        let violation = if mutant.guards() == Invariant::NeverQuiescent {
            let dead_end = Graph::explore(system)?.dead_end();
            dead_end.map(|trace| Violation { invariant: Invariant::NeverQuiescent, trace })
        } else {
            check_safety(system).1
        };
        if let Some(violation) = violation {
            return Ok(Some(Refutation { mutant, faults, violation }));
        }
    }
    Ok(None)
}

/// Explores with stateright, until the end or the first violation. With one thread the search is breadth-first, and the
/// trace is a shortest one.
fn check_safety(system: Explored) -> (usize, Option<Violation>) {
    let checker = system.checker().threads(1).spawn_bfs().join();
    let violation = checker.discovery(SAFETY).and_then(|path: Path<State<2, 2>, Action>| {
        Some(Violation { invariant: path.last_state().violated()?, trace: path.into_actions() })
    });
    (checker.unique_state_count(), violation)
}
