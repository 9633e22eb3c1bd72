//! Everything that proves something in a running system, and who runs it.
//!
//! A proof that nothing runs says what was true once. So each drill, each pair of a drill and a missing protection, each level of
//! each relay and each mistake has one [`Owner`], and CI runs what an owner has, from this list.

mod without;

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use flaws::Flaw;
use judge::{Entrant, LEVELS, MISTAKES};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use without::WITHOUT;

use crate::drills;
use crate::reconciliation::Finding;
use crate::without::Protection;

/// Who runs a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Owner {
    /// Every landing runs a part, which changes with the tree and the date.
    Rotating,
    /// The nightly run.
    Nightly,
}

/// Something that proves something: a command, and how it must end.
#[derive(Debug)]
pub(crate) struct Proof {
    /// Unique, and readable.
    pub(crate) name: String,
    pub(crate) owner: Owner,
    pub(crate) run: Run,
    /// Whether a protection is missing: the verdict must be BROKEN, by one of these invariants if there are any.
    pub(crate) without: Option<&'static [&'static str]>,
}

/// The invariants that the reconciliation finds broken.
const IN_RECORDS: [&str; 6] = ["I1", "I2", "I3", "I4", "I5", "I6"];
/// What a drill says about events that no service consumes (`drills/confirmations.rs`).
const NEVER_ARRIVED: &str = "never arrived";

/// How a proof is run.
#[derive(Debug)]
pub(crate) enum Run {
    /// `demo` with these arguments. One at a time: for example, a load and its times are part of a drill.
    Alone(Vec<String>),
    /// The experiment that leaves out this flaw, as [`Run::Alone`].
    Experiment(&'static str),
    /// `demo` with these arguments, and a value of `RELAY_MISTAKE`. The judge mostly waits.
    Judge(Vec<String>, Option<&'static str>),
    /// The simulation with these arguments.
    Simulation(Vec<String>),
    /// `demo` with these arguments, of which the last is the name of a test that must fail.
    Test(Vec<String>),
}

/// The drills of [`Owner::Rotating`]: one for each kind of fault, and quick ones.
const ROTATING: [&str; 16] = [
    "broker-kill",
    "confirm-lost",
    "commit-answer-lost",
    "consumer-killed-before-commit",
    "consumer-restored",
    "copies-reordered",
    "clocks-wrong",
    "instances-mixed-faults",
    "overload",
    "partition-owner-killed",
    "poison",
    "provider-faults",
    "relay-frozen",
    "replayed-twice",
    "same-key-storm",
    "services-terminated",
];

/// The relays of this repository.
const OURS: [&str; 5] = ["ours", "one-file", "python", "leasing", "pattern"];

/// So many seeds of the simulation are new in each night.
const NEW_SEEDS: u64 = 20_000;

/// All proofs. `day` decides which seeds are new.
pub(crate) fn all(day: u64) -> Result<Vec<Proof>> {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut proofs = vec![];
    for drill in drills::all() {
        let name = drill.name;
        let owner = if ROTATING.contains(&name) { Owner::Rotating } else { Owner::Nightly };
        let run = Run::Alone(words(&format!("drill {name} --rate 30")));
        proofs.push(Proof { name: format!("drill {name}"), owner, run, without: None });
    }
    for (options, drills) in &WITHOUT {
        let breaks = options.split(' ').find_map(Flaw::named).map_or(&[][..], |flaw| flaw.row().breaks);
        for drill in *drills {
            let run = Run::Alone(words(&format!("drill {drill} --rate 30 {options}")));
            let name = format!("drill {drill} {options}");
            proofs.push(Proof { name, owner: Owner::Nightly, run, without: Some(breaks) });
        }
    }
    for experiment in &crate::experiments::ALL {
        let flaw = experiment.flaw.name();
        let (owner, run) = (Owner::Rotating, Run::Experiment(flaw));
        proofs.push(Proof { name: format!("sabotage {flaw}"), owner, run, without: None });
    }
    for protection in Protection::all()? {
        for name in protection.commands() {
            let run = match name.split(' ').next() {
                Some("test") => Run::Test(words(&name)),
                Some("drill") => Run::Alone(words(&format!("{name} --rate 30"))),
                // They share the copy of the checkout.
                _ => Run::Alone(words(&name)),
            };
            proofs.push(Proof { name, owner: Owner::Nightly, run, without: Some(&[]) });
        }
    }
    let level_of = |relay: &str, level: u8| words(&format!("judge {relay} --level {level}"));
    for relay in Entrant::shipped()? {
        let owner = if OURS.contains(&&*relay) { Owner::Rotating } else { Owner::Nightly };
        for level in (1..).take(LEVELS.len()) {
            let run = Run::Judge(level_of(&relay, level), None);
            proofs.push(Proof { name: format!("level {level} {relay}"), owner, run, without: None });
        }
    }
    for mistake in &MISTAKES {
        for level in mistake.breaks {
            let owner = if mistake.breaks.first() == Some(level) { Owner::Rotating } else { Owner::Nightly };
            let run = Run::Judge(level_of(mistake.relay, *level), Some(mistake.name));
            let name = format!("level {level} {} {}", mistake.relay, mistake.name);
            proofs.push(Proof { name, owner, run, without: Some(&[]) });
        }
    }
    // The first seeds run with every `cargo test`.
    let from = 1_000_000 + day * NEW_SEEDS;
    for (name, option) in [("new seeds", ""), ("new seeds --log", " --log")] {
        let run = Run::Simulation(words(&format!("--seeds {NEW_SEEDS} --from {from}{option}")));
        proofs.push(Proof { name: name.to_owned(), owner: Owner::Nightly, run, without: None });
    }
    Ok(proofs)
}

/// Whether a drill is known to break where this flaw replaces what it should test.
pub(crate) fn breaks_without(drill: &str, flaw: Flaw) -> bool {
    WITHOUT.iter().any(|(options, drills)| {
        drills.contains(&drill) && options.split(' ').any(|word| word == flaw.name())
    })
}

impl Proof {
    /// What is wrong with how the command has ended. `document` is what it has printed, if that is JSON.
    pub(crate) fn what_is_wrong(&self, code: Option<i32>, document: &Value) -> Option<String> {
        let expected = if self.without.is_some() { 1 } else { 0 };
        if code != Some(expected) {
            let code = code.map_or("none".to_owned(), |code| code.to_string());
            return Some(format!("exit code {code} instead of {expected}"));
        }
        let breaks = self.without.filter(|breaks| !breaks.is_empty())?;
        let report = &document["report"];
        let Ok(findings) =
            serde_json::from_value::<Vec<Finding>>(report["reconciliation"]["findings"].clone())
        else {
            return Some("no report of a drill".to_owned());
        };
        let broken: Vec<_> = findings.iter().map(Finding::invariant).collect();
        if broken.is_empty() {
            // Being late is no sign of it, except of a flaw that does no more.
            let in_records = breaks.iter().all(|invariant| IN_RECORDS.contains(invariant));
            let is_told = report["reason"].as_str().is_some_and(|reason| reason.contains(NEVER_ARRIVED));
            return (in_records && !is_told)
                .then(|| format!("nothing in the records broke {}", breaks.join(" or ")));
        }
        let as_named = broken.iter().any(|invariant| breaks.contains(invariant));
        (!as_named).then(|| format!("broke {}, not {}", broken.join(", "), breaks.join(" or ")))
    }
}

/// How a proof ended when it was run last.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ended {
    pub(crate) proof: String,
    /// RFC 3339, in UTC.
    pub(crate) at: String,
    #[serde(default)]
    pub(crate) seconds: u64,
    /// What a drill said for its verdict, or the breaches of a level.
    pub(crate) found: String,
    /// `null`: it ended as it must.
    pub(crate) wrong: Option<String>,
    /// Whether it could not be run, or has proven nothing.
    #[serde(skip)]
    pub(crate) is_unproven: bool,
}

/// The file of kept results, below the checkout: one line for each proof.
pub(crate) const KEPT: &str = "docs/evidence/proofs.json";

/// What is kept, by the proof's name.
pub(crate) fn kept() -> Result<BTreeMap<String, Ended>> {
    let file = testbed::workspace_root().context("proofs are run in a checkout")?.join(KEPT);
    let text = std::fs::read(&file).with_context(|| format!("failed to read {}", file.display()))?;
    let kept: Vec<Ended> =
        serde_json::from_slice(&text).with_context(|| format!("failed to read {}", file.display()))?;
    Ok(kept.into_iter().map(|ended| (ended.proof.clone(), ended)).collect())
}

/// Keeps results beside those that are kept.
pub(crate) fn keep(ended: &[Ended]) -> Result<()> {
    let mut kept = kept()?;
    kept.extend(ended.iter().map(|ended| (ended.proof.clone(), ended.clone())));
    let lines: Vec<_> = kept.values().map(serde_json::to_string).collect::<Result<_, _>>()?;
    let file = testbed::workspace_root().context("proofs are run in a checkout")?.join(KEPT);
    std::fs::write(&file, format!("[\n{}\n]\n", lines.join(",\n")))
        .with_context(|| format!("failed to write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_proof_has_a_name_of_its_own_and_names_what_exists() {
        let proofs = all(0).unwrap();
        let names: HashSet<_> = proofs.iter().map(|proof| &*proof.name).collect();
        assert_eq!(names.len(), proofs.len(), "two proofs have one name");
        for (_, drills) in &WITHOUT {
            drills.iter().for_each(|name| _ = drills::find(name).unwrap());
        }
        assert!(ROTATING.iter().all(|name| drills::find(name).is_ok()));
        let unknown: Vec<_> = kept().unwrap().into_keys().filter(|name| !names.contains(&**name)).collect();
        assert!(unknown.is_empty(), "{KEPT} has results of what is no proof any more: {unknown:?}");
    }

    /// A missing protection that no drill, experiment, seed or level notices could be missing in the product.
    #[test]
    fn every_flaw_has_a_proof() {
        let has_drill =
            |name: &str| WITHOUT.iter().any(|(options, _)| options.split(' ').any(|word| word == name));
        let has_level = |name: &str| MISTAKES.iter().any(|mistake| mistake.name == name);
        let has_experiment = |flaw| crate::experiments::ALL.iter().any(|experiment| experiment.flaw == flaw);
        let unseen: Vec<_> = flaws::ALL
            .iter()
            .filter(|row| row.simulated.is_none() && !has_experiment(row.flaw))
            .filter(|row| !has_drill(row.name) && !has_level(row.name) && row.breaks != ["speed"])
            .map(|row| row.name)
            .collect();
        assert_eq!(unseen, IN_VARIANTS, "no proof notices these");
    }

    /// Those that `tests/variants.rs` judges.
    const IN_VARIANTS: [&str; 3] = ["row-locks", "delete-once-published", "listen-alone"];
}
