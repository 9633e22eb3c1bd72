//! The complete system holds with one fault of any kind (the program `model` explores it with two), and each missing
//! protection violates the invariant that it guards: the check can fail.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use flaws::Flaw;
use model::{Explored, explore, refute};

fn assert_holds(system: Explored) -> usize {
    let exploration = explore(system).unwrap();
    if let Some(violation) = exploration.violation {
        let trace: Vec<_> = violation.trace.iter().map(|action| format!("    {action}\n")).collect();
        panic!("{}\n{}", violation.invariant.text(), trace.concat());
    }
    assert!(exploration.quiescent > 0, "no quiescent state was reached");
    exploration.states
}

#[test]
fn no_reachable_state_violates_an_invariant_and_all_can_become_quiescent() {
    let states = [0, 1].map(|faults| assert_holds(Explored::bounded(faults)));
    assert!(states[0] < states[1], "the fault adds no states: {states:?}");
}

#[test]
fn reduction_hides_no_violation() {
    let states = [Explored::bounded(1), Explored::bounded(1).unreduced()].map(assert_holds);
    assert!(states[0] < states[1], "the reduction removes no states: {states:?}");
}

#[test]
fn each_flaw_is_refuted_within_two_faults() {
    for (flaw, expected) in Flaw::modelled() {
        let Some((_, violation)) = refute(flaw, 2).unwrap() else {
            panic!("{flaw:?} does not violate {:?}", expected.in_model);
        };
        assert_eq!(Some(violation.invariant.number()), expected.in_model, "{flaw:?}");
        assert!(!violation.trace.is_empty(), "{flaw:?} violates its invariant without a transition");
    }
}
