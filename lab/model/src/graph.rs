//! All reachable states: whether one of them violates an invariant, and from which of them a quiescent one is reachable
//! without further faults.
//!
//! A library's check that each trace *eventually* gets there asks something else: one that comes back to a state that was
//! reached before never does.

use indexmap::IndexSet;

use crate::{action::Action, invariant::Invariant, state::State, system::Explored};

/// The reachable states, in the order in which a breadth-first search finds them.
pub(crate) struct Graph {
    system: Explored,
    pub(crate) states: IndexSet<State<2, 2>, ahash::RandomState>,
    /// For each state, the one from which it was found first.
    parents: Vec<u32>,
    /// The states that follow each state by a transition that is no fault, one list after the other.
    successors: Vec<u32>,
    /// Where the list of each state ends.
    ends: Vec<usize>,
    pub(crate) transitions: usize,
    /// A shortest trace to a state that violates an invariant. It ends the search.
    pub(crate) violation: Option<(Invariant, Vec<Action>)>,
}

impl Graph {
    /// Explores the system to the end, or to the first violation.
    ///
    /// # Errors
    /// When there are more than 2³² states.
    pub(crate) fn explore(system: Explored) -> anyhow::Result<Self> {
        let states = std::iter::once(system.first_state()).collect();
        let (parents, successors, ends) = (vec![0], vec![], vec![]);
        let mut graph = Self { system, states, parents, successors, ends, transitions: 0, violation: None };
        let mut steps = vec![];
        let mut index = 0;
        while let Some(state) = graph.states.get_index(index).copied() {
            graph.system.steps(&state, None, &mut steps);
            for step in steps.drain(..) {
                graph.transitions += 1;
                let violated = step.next.violated;
                let (found, is_new) = graph.states.insert_full(step.next);
                if is_new {
                    graph.parents.push(u32::try_from(index)?);
                }
                if let Some(invariant) = violated {
                    graph.violation = Some((invariant, graph.trace(found)));
                    return Ok(graph);
                }
                if !step.is_fault {
                    graph.successors.push(u32::try_from(found)?);
                }
            }
            graph.ends.push(graph.successors.len());
            index += 1;
        }
        Ok(graph)
    }

    /// The number of quiescent states.
    pub(crate) fn quiescent_count(&self) -> usize {
        self.states.iter().filter(|state| state.is_quiescent()).count()
    }

    /// The number of transitions to the state that is farthest from the first.
    pub(crate) fn depth(&self) -> usize {
        self.states.len().checked_sub(1).map_or(0, |last| self.trace(last).len())
    }

    /// A shortest trace to a state from which no quiescent state is reachable without further faults.
    pub(crate) fn dead_end(&self) -> Option<Vec<Action>> {
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
        let first = ends_well.iter().position(|ends_well| !ends_well)?;
        Some(self.trace(first))
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
