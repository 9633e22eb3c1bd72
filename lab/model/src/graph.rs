//! All reachable states: whether one of them violates an invariant, and from which of them a quiescent one is reachable
//! without further faults.
//!
//! A library's check that each trace *eventually* gets there asks something else: one that comes back to a state that was
//! reached before never does.

use indexmap::IndexSet;

use crate::{action::Action, invariant::Invariant, state::State, system::Explored};

/// A violated invariant, with a shortest trace to the violation.
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
/// When there are more than 2³² states.
pub fn explore(system: Explored) -> anyhow::Result<Exploration> {
    let states = std::iter::once(system.first_state()).collect();
    let (parents, successors, ends) = (vec![0], vec![], vec![]);
    let mut graph = Graph { system, states, parents, successors, ends, transitions: 0 };
    let violated = match graph.search()? {
        Some(violated) => Some(violated),
        None => graph.dead_end().map(|state| (Invariant::NeverQuiescent, state)),
    };
    let last = graph.states.len() - 1;
    Ok(Exploration {
        states: graph.states.len(),
        transitions: graph.transitions,
        depth: graph.trace(last).len(),
        quiescent: graph.states.iter().filter(|state| state.is_quiescent()).count(),
        violation: violated.map(|(invariant, state)| Violation { invariant, trace: graph.trace(state) }),
    })
}

/// The reachable states.
struct Graph {
    system: Explored,
    /// In the order in which a breadth-first search finds them.
    states: IndexSet<State<2, 2>, ahash::RandomState>,
    /// For each state, the one from which it was found first.
    parents: Vec<u32>,
    /// The states that follow each state by a transition that is no fault, one list after the other.
    successors: Vec<u32>,
    /// Where the list of each state ends.
    ends: Vec<usize>,
    transitions: usize,
}

impl Graph {
    /// Finds all states, or the first one that violates an invariant: its number ends the search.
    fn search(&mut self) -> anyhow::Result<Option<(Invariant, usize)>> {
        let mut steps = vec![];
        let mut index = 0;
        while let Some(state) = self.states.get_index(index).copied() {
            self.system.steps(&state, None, &mut steps);
            for step in steps.drain(..) {
                self.transitions += 1;
                let violated = step.next.violated;
                let (found, is_new) = self.states.insert_full(step.next);
                if is_new {
                    self.parents.push(u32::try_from(index)?);
                }
                if let Some(invariant) = violated {
                    return Ok(Some((invariant, found)));
                }
                if !step.is_fault {
                    self.successors.push(u32::try_from(found)?);
                }
            }
            self.ends.push(self.successors.len());
            index += 1;
        }
        Ok(None)
    }

    /// The first state from which no quiescent state is reachable without further faults.
    fn dead_end(&self) -> Option<usize> {
        let mut ends_well: Vec<_> = self.states.iter().map(State::is_quiescent).collect();
        // A successor nearly always comes later in the order, so that few passes from the last to the first suffice.
        let mut is_changed = true;
        while is_changed {
            is_changed = false;
            for index in (0..ends_well.len()).rev() {
                if !ends_well[index] && self.successors(index).iter().any(|next| ends_well[*next as usize]) {
                    ends_well[index] = true;
                    is_changed = true;
                }
            }
        }
        ends_well.iter().position(|ends_well| !ends_well)
    }

    fn successors(&self, index: usize) -> &[u32] {
        let begin = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.successors[begin..self.ends[index]]
    }

    /// The actions of a shortest trace to this state.
    fn trace(&self, mut index: usize) -> Vec<Action> {
        let mut trace = vec![];
        while index > 0 {
            let parent = self.parents[index] as usize;
            let (from, to) = (&self.states[parent], &self.states[index]);
            let mut steps = vec![];
            self.system.steps(from, None, &mut steps);
            trace.extend(steps.iter().find(|step| step.next == *to).map(|step| step.action));
            index = parent;
        }
        trace.reverse();
        trace
    }
}
