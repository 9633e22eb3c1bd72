//! Fault drills: each breaks something under load, repairs it, and reconciles. A drill is a row of a table, one table for
//! each group.

mod at_end;
mod broker;
mod carry_out;
mod client;
mod cluster;
mod confirmations;
mod credentials;
mod data;
mod database;
mod disk;
mod drill;
mod drill_run;
mod failover;
mod felt;
mod log_relay;
mod network;
mod objectives;
mod overload;
mod power;
mod progress;
mod report;
mod restore;
mod sequence;
mod service;
mod time;
mod upgrade;
mod waiting;
mod written_report;

use anyhow::{Context as _, Result};

pub(crate) use carry_out::{SERVICE, own_system, run, run_both, run_on_own};
pub(crate) use drill::{Drill, Group, Subject};
pub(crate) use drill_run::DrillOptions;

/// All drills, in the order in which `drill all` runs them.
pub(crate) fn all() -> impl Iterator<Item = &'static Drill> {
    let groups: [&[Drill]; 15] = [
        &broker::DRILLS,
        &cluster::DRILLS,
        &network::DRILLS,
        &database::DRILLS,
        &failover::DRILLS,
        &restore::DRILLS,
        &log_relay::DRILLS,
        &power::DRILLS,
        &disk::DRILLS,
        &upgrade::DRILLS,
        &service::DRILLS,
        &credentials::DRILLS,
        &client::DRILLS,
        &data::DRILLS,
        &time::DRILLS,
    ];
    groups.into_iter().flatten()
}

/// Finds a drill by its name.
pub(crate) fn find(name: &str) -> Result<&'static Drill> {
    let found = all().find(|drill| drill.name == name);
    found.with_context(|| format!("unknown drill `{name}`: `cargo demo drill list` prints them"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_catalogue_in_the_docs_lists_every_drill() {
        let page = include_str!("../../../../docs/drills.md");
        let (_, catalogue) = page.split_once("## The catalogue\n").unwrap();
        let names: HashSet<_> = all().map(|drill| drill.name).collect();
        assert_eq!(names.len(), all().count(), "two drills have one name");
        assert!(page.contains(&format!("the {} drills", names.len())), "the page counts other drills");
        for group in Group::ALL {
            let drills = all().filter(|drill| drill.group == group);
            let drills: Vec<_> = drills.map(|drill| format!("`{}`", drill.name)).collect();
            let row = format!("| [{group}](../lab/demo/src/drills/{group}.rs) | {} |\n", drills.join(", "));
            assert!(catalogue.contains(&row), "missing: {row}");
        }
    }
}
