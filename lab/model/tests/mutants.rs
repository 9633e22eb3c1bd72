//! Shows that the check can fail: without any one protection, the invariant that it guards is violated.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use model::{Mutant, refute};

#[test]
fn each_mutant_is_refuted_within_two_faults() {
    for mutant in Mutant::ALL {
        let Some(refutation) = refute(mutant, 2).unwrap() else {
            panic!("{mutant:?} does not violate {}", mutant.guards());
        };
        assert_eq!(refutation.violation.invariant, mutant.guards(), "{mutant:?}");
        assert!(
            !refutation.violation.trace.is_empty(),
            "{mutant:?} violates its invariant without a transition"
        );
    }
}

#[test]
fn every_mutant_of_the_simulation_is_expressed() {
    let names = |mutants: &[&dyn std::fmt::Debug]| -> Vec<_> {
        mutants.iter().map(|mutant| format!("{mutant:?}")).collect()
    };
    let of_simulation = simulation::Mutant::ALL.each_ref().map(|mutant| mutant as &dyn std::fmt::Debug);
    let of_model = Mutant::ALL.each_ref().map(|mutant| mutant as &dyn std::fmt::Debug);
    assert_eq!(names(&of_model), names(&of_simulation));
}
