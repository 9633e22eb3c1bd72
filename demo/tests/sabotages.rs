//! Each protection, left out once. A check that cannot go red proves nothing by being green.

#![allow(clippy::print_stdout, reason = "the table is what `cargo demo sabotage` is for")]

use anyhow::ensure;
use demo::lab::sabotage::{ALL, Experiment, Finding};
use futures_util::{StreamExt, stream};

/// Each experiment is two systems of three processes, which mostly wait.
const AT_A_TIME: usize = 3;

#[tokio::test]
async fn every_missing_protection_is_noticed_and_whole_systems_hold() -> anyhow::Result<()> {
    let chosen = std::env::var("SABOTAGE").ok();
    let experiments = ALL.into_iter().flatten();
    let chosen = experiments.filter(|experiment| chosen.as_ref().is_none_or(|name| name == experiment.name));
    println!("{}", heading());
    let mut findings: Vec<_> = stream::iter(chosen)
        .map(async |experiment| {
            let finding = experiment.run().await;
            match &finding {
                Ok(finding) => println!("{}", line(experiment, finding)),
                Err(error) => println!("{:<32} NOTHING IS KNOWN: {error:#}", experiment.name),
            }
            finding
        })
        .buffer_unordered(AT_A_TIME)
        .collect()
        .await;
    ensure!(!findings.is_empty(), "there is no such sabotage");
    let failed =
        findings.extract_if(.., |finding| !finding.as_ref().is_ok_and(Finding::is_as_foretold)).count();
    println!("{} of {} caught as foretold", findings.len(), findings.len() + failed);
    ensure!(failed == 0, "{failed} of {} did not end as foretold", findings.len() + failed);
    Ok(())
}

fn heading() -> String {
    format!("{:<32} {:<9} {:<8} {:>7}  what was seen", "protection left out", "foretold", "red", "seconds")
}

fn line(experiment: &Experiment, finding: &Finding) -> String {
    let red = finding.caught.as_ref().map_or("NOTHING", |breach| breach.invariant);
    let mut seen = finding.caught.as_ref().map_or(String::new(), |breach| breach.what.clone());
    if let Some(alarm) = &finding.false_alarm {
        seen += &format!("; FALSE ALARM in the whole system: {} {}", alarm.invariant, alarm.what);
    }
    let foretold = finding.invariants.join("/");
    let Experiment { name, fault, .. } = experiment;
    format!("{name:<32} {foretold:<9} {red:<8} {:>7.1}  {seen}\n{:<34}when {fault}", finding.seconds, "")
}

/// So that none is forgotten.
#[test]
fn there_is_an_experiment_for_every_sabotage() {
    let known: Vec<_> = faults::Sabotage::ALL.map(faults::Sabotage::name).to_vec();
    let mut tried: Vec<_> = ALL.into_iter().flatten().map(|experiment| experiment.name).collect();
    tried.sort_unstable_by_key(|name| known.iter().position(|other| other == name));
    assert_eq!(tried, known);
}
