//! Leaves out each protection once. A check that cannot fail proves nothing by passing.
//!
//! `EXPERIMENT=name` runs one of them.

#![allow(clippy::print_stdout, reason = "the table is the output of `cargo demo sabotage`")]

use anyhow::ensure;
use demo::experiments::{ALL, Experiment, Finding};
use flaws::LeftOut;
use futures_util::{StreamExt, stream};

/// Each experiment runs two systems of four processes, which mostly wait. Fewer on a slow machine.
const AT_A_TIME: u32 = 3;

#[ignore = "takes minutes, and checks the checks: `cargo demo sabotage` runs it, and CI by turns"]
#[tokio::test]
async fn each_missing_protection_is_noticed_and_complete_systems_hold() -> anyhow::Result<()> {
    let chosen = std::env::var("EXPERIMENT").ok();
    let chosen =
        ALL.iter().filter(|experiment| chosen.as_ref().is_none_or(|name| name == experiment.flaw.name()));
    println!("{}", heading());
    let mut findings: Vec<_> = stream::iter(chosen)
        .map(async |experiment| {
            let finding = experiment.run().await;
            match &finding {
                Ok(finding) => println!("{}", line(experiment, finding)),
                Err(error) => println!("{:<32} INCONCLUSIVE: {error:#}", experiment.flaw.name()),
            }
            finding
        })
        .buffer_unordered(testbed::fewer(AT_A_TIME) as usize)
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
    let (name, fault) = (finding.name, experiment.fault);
    format!("{name:<32} {expected:<9} {broke:<8} {:>7.1}  {seen}\n{:<34}when {fault}", finding.seconds, "")
}

/// The flaws that experiments or drills judge in a running system, each with its place in the documentation.
#[test]
fn each_flaw_is_judged_somewhere_and_documented() {
    let [drills, breaking, variants, simulation, guarantees] = [
        include_str!("../../../docs/drills.md"),
        include_str!("../../../docs/breaking-it.md"),
        include_str!("../../../docs/variants.md"),
        include_str!("../../../docs/simulation.md"),
        include_str!("../../../docs/guarantees.md"),
    ];
    for row in &flaws::ALL {
        let name = row.name;
        let line = |page: &str, start: &str| page.lines().any(|line| line.starts_with(start));
        let has_experiment = ALL.iter().any(|experiment| experiment.flaw == row.flaw);
        if has_experiment {
            assert!(line(breaking, &format!("{name} ")), "{name} in docs/breaking-it.md");
            let left_out = |invariant: &&str| {
                let row = guarantees.lines().find(|line| line.starts_with(&format!("| {invariant} |")));
                row.is_some_and(|row| row.contains(&format!("`{name}`")))
            };
            assert!(row.breaks.iter().any(left_out), "{name} in docs/guarantees.md");
        }
        match row.left_out {
            LeftOut::Part | LeftOut::Database(_) | LeftOut::Broker(_) => {
                let has_drill = drills.contains(&format!("`--sabotage {name}`"));
                assert!(has_experiment || has_drill, "{name} in docs/drills.md");
            }
            LeftOut::Variant => {
                assert!(line(variants, &format!("| `{name}` |")), "{name} in docs/variants.md");
            }
            LeftOut::Settings(_) => assert!(has_experiment, "{name} has no experiment"),
            LeftOut::InMemory => assert!(row.simulated.is_some(), "{name} is nowhere"),
        }
        if row.simulated.is_some() {
            assert!(simulation.contains(&format!("`{name}`")), "{name} in docs/simulation.md");
        }
    }
}
