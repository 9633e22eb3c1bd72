//! Leaves out each protection once. A check that cannot fail proves nothing by passing.
//!
//! `EXPERIMENT=name` runs one of them.

#![allow(clippy::print_stdout, reason = "the table is the output of `cargo demo sabotage`")]

use anyhow::ensure;
use demo::lab::sabotage::{ALL, Experiment, Finding, LeftOut};
use futures_util::{StreamExt, stream};
use sabotage::Sabotage;

/// Each experiment runs two systems of four processes, which mostly wait.
const AT_A_TIME: usize = 3;

#[tokio::test]
async fn each_missing_protection_is_noticed_and_complete_systems_hold() -> anyhow::Result<()> {
    let chosen = std::env::var("EXPERIMENT").ok();
    let experiments = ALL.into_iter().flatten();
    let chosen = experiments.filter(|experiment| chosen.as_ref().is_none_or(|name| name == experiment.name));
    println!("{}", heading());
    let mut findings: Vec<_> = stream::iter(chosen)
        .map(async |experiment| {
            let finding = experiment.run().await;
            match &finding {
                Ok(finding) => println!("{}", line(experiment, finding)),
                Err(error) => println!("{:<32} INCONCLUSIVE: {error:#}", experiment.name),
            }
            finding
        })
        .buffer_unordered(AT_A_TIME)
        .collect()
        .await;
    ensure!(!findings.is_empty(), "there is no such experiment");
    let failed =
        findings.extract_if(.., |finding| !finding.as_ref().is_ok_and(Finding::is_as_expected)).count();
    println!("{} of {} caught as expected", findings.len(), findings.len() + failed);
    ensure!(failed == 0, "{failed} of {} did not end as expected", findings.len() + failed);
    Ok(())
}

fn heading() -> String {
    format!("{:<32} {:<9} {:<8} {:>7}  what was seen", "protection left out", "expected", "broke", "seconds")
}

fn line(experiment: &Experiment, finding: &Finding) -> String {
    let broke = finding.caught.as_ref().map_or("NOTHING", |breach| breach.invariant);
    let mut seen = finding.caught.as_ref().map_or(String::new(), |breach| breach.what.clone());
    if let Some(alarm) = &finding.false_alarm {
        seen += &format!("; FALSE ALARM in the complete system: {} {}", alarm.invariant, alarm.what);
    }
    let expected = finding.invariants.join("/");
    let Experiment { name, fault, .. } = experiment;
    format!("{name:<32} {expected:<9} {broke:<8} {:>7.1}  {seen}\n{:<34}when {fault}", finding.seconds, "")
}

#[test]
fn there_is_an_experiment_or_a_drill_for_every_sabotage() {
    let mut known: Vec<_> = Sabotage::ALL.map(Sabotage::name).to_vec();
    let parts = ALL.into_iter().flatten().filter(|experiment| experiment.left_out == LeftOut::Part);
    let mut tried: Vec<_> = parts.map(|experiment| experiment.name).collect();
    // These need what an experiment on the shared servers has not: a wrong clock, a broker that is away, a lost answer, a fault
    // under load.
    for name in [
        "age-by-own-clock",
        "limit-by-time-alone",
        "new-key-per-attempt",
        "cancel-ignored",
        "refusals-back-off",
        "failed-marks-ignored",
        "hanging-commits-ignored",
    ] {
        assert!(include_str!("../../../docs/drills.md").contains(&format!("`--sabotage {name}`")), "{name}");
        tried.push(name);
    }
    known.sort_unstable();
    tried.sort_unstable();
    assert_eq!(tried, known);
}
