//! The file as text: short, without a crate of this workspace, and with its dependencies at its head.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

const TEXT: &str = include_str!("../../src/main.rs");
const MAX_LINES: usize = 300;

#[derive(Deserialize)]
struct Manifest {
    dependencies: BTreeMap<String, serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Root {
    workspace: Workspace,
}

#[derive(Deserialize)]
struct Workspace {
    dependencies: BTreeMap<String, Dependency>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Dependency {
    Version(String),
    Table { version: Option<String> },
}

#[test]
fn file_has_at_most_300_lines() {
    assert!(TEXT.lines().count() <= MAX_LINES, "{} lines", TEXT.lines().count());
}

#[test]
fn head_adds_the_dependencies_and_none_is_a_crate_of_this_workspace() {
    let manifest: Manifest = basic_toml::from_str(include_str!("../../Cargo.toml")).unwrap();
    let root: Root = basic_toml::from_str(include_str!("../../../../Cargo.toml")).unwrap();
    let commands = TEXT.lines().filter_map(|line| line.strip_prefix("//! cargo add "));
    let added: BTreeMap<_, _> =
        commands.flat_map(|command| command.split(' ').filter_map(|word| word.split_once('@'))).collect();
    let used: BTreeSet<_> = manifest.dependencies.keys().map(String::as_str).collect();
    assert_eq!(added.keys().copied().collect::<BTreeSet<_>>(), used);
    for (name, version) in added {
        let of_workspace = match &root.workspace.dependencies[name] {
            Dependency::Version(version) => Some(version),
            Dependency::Table { version } => version.as_ref(),
        };
        let of_workspace = of_workspace.unwrap_or_else(|| panic!("{name} is a crate of this workspace"));
        assert!(of_workspace.starts_with(version), "{name}: {of_workspace} here, {version} in the head");
    }
}
