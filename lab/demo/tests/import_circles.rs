//! No two modules of a crate import each other, directly or through others: each can be read before those that use it. Seen from
//! outside, a folder is one module. The files inside a folder are checked among themselves.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and end")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

type Graph = BTreeMap<String, BTreeSet<String>>;

#[test]
fn no_files_of_a_crate_import_each_other_in_a_circle() {
    let root = testbed::workspace_root().unwrap();
    let mut crates = vec![root.join("load-tests/src")];
    for folder in ["services", "shared", "lab", "examples"] {
        crates
            .extend(fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path().join("src")));
    }
    for source in crates.iter().filter(|source| source.is_dir()) {
        let files = rust_files(source);
        for folder in files.iter().filter_map(|file| file.parent()).collect::<BTreeSet<_>>() {
            let circle = circle(imports(folder, if folder == source { "crate::" } else { "super::" }));
            assert_eq!(circle, None, "{}", folder.display());
        }
    }
}

#[test]
fn a_circle_is_found() {
    let graph = |edges: &[(&str, &str)]| {
        let mut graph = Graph::new();
        for (from, to) in edges {
            graph.entry((*from).into()).or_default().insert((*to).into());
        }
        graph
    };
    assert_eq!(circle(graph(&[("a", "b"), ("b", "c"), ("a", "c")])), None);
    assert_eq!(circle(graph(&[("a", "b"), ("b", "c"), ("c", "b")])).as_deref(), Some("b -> c -> b"));
}

/// Which module of a folder imports which: by `crate::` in `src`, where a folder counts as one module, and by `super::` in a
/// folder below it. `lib.rs`, `main.rs`, `mod.rs` and tests do not count: they name them all.
fn imports(folder: &Path, by: &str) -> Graph {
    let mut graph = Graph::new();
    for file in rust_files(folder) {
        let relative = file.strip_prefix(folder).unwrap().with_extension("");
        let module = relative.iter().next().unwrap().to_string_lossy().into_owned();
        let is_below = relative.iter().count() > 1;
        if ["lib", "main", "bin", "mod"].contains(&module.as_str()) || is_below && by == "super::" {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        let targets = graph.entry(module.clone()).or_default();
        targets.extend(imported_modules(code, by).into_iter().filter(|target| *target != module));
    }
    graph
}

/// A circle of the graph, if there is one.
fn circle(mut graph: Graph) -> Option<String> {
    // Without those that import no other, again and again, each module that is left imports another one that is left.
    loop {
        let known: BTreeSet<_> = graph.keys().cloned().collect();
        graph.values_mut().for_each(|targets| targets.retain(|target| known.contains(target)));
        graph.retain(|_, targets| !targets.is_empty());
        if graph.len() == known.len() {
            break;
        }
    }
    let mut path = vec![graph.keys().next()?.as_str()];
    loop {
        let next = graph[*path.last()?].first()?.as_str();
        if let Some(start) = path.iter().position(|seen| *seen == next) {
            return Some(format!("{} -> {next}", path[start..].join(" -> ")));
        }
        path.push(next);
    }
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = vec![];
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// The first part of each path behind `crate::` or `super::`, also in `crate::{a, b::C}`.
fn imported_modules(code: &str, root: &str) -> Vec<String> {
    let word = |text: &str| {
        text.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect::<String>()
    };
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let mut modules = vec![];
    for rest in code.split(root).skip(1) {
        let Some(group) = rest.strip_prefix('{') else {
            modules.push(word(rest));
            continue;
        };
        let (mut depth, mut at_start) = (0, true);
        for (index, letter) in group.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => at_start = true,
                _ if at_start && !letter.is_whitespace() => {
                    modules.push(word(&group[index..]));
                    at_start = false;
                }
                _ => {}
            }
        }
    }
    modules
}
