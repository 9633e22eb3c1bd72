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
    let mut crates = vec![];
    for folder in ["services", "shared", "lab", "examples"] {
        crates
            .extend(fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path().join("src")));
    }
    crates.push(root.join("load-tests/src"));
    let mut circles = vec![];
    for source in crates.iter().filter(|source| source.is_dir()) {
        circles.extend(circle(&imports(source)).map(|circle| format!("{}: {circle}", source.display())));
        for folder in folders(source) {
            let circle = circle(&imports_inside(&folder));
            circles.extend(circle.map(|circle| format!("{}: {circle}", folder.display())));
        }
    }
    assert!(circles.is_empty(), "{circles:#?}");
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
    assert_eq!(circle(&graph(&[("a", "b"), ("b", "c"), ("a", "c")])), None);
    assert_eq!(circle(&graph(&[("a", "b"), ("b", "c"), ("c", "b")])).as_deref(), Some("b -> c -> b"));
}

/// Which top-level module imports which. A folder counts as one module; `lib.rs`, `main.rs` and tests do not count.
fn imports(source: &Path) -> Graph {
    let mut graph = Graph::new();
    for file in rust_files(source) {
        let relative = file.strip_prefix(source).unwrap().with_extension("");
        let module = relative.iter().next().unwrap().to_string_lossy().into_owned();
        if ["lib", "main", "bin"].contains(&module.as_str()) {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        let targets = graph.entry(module.clone()).or_default();
        targets.extend(imported_modules(code, "crate::").into_iter().filter(|target| *target != module));
    }
    only_known(graph)
}

/// Which file of a folder imports which other one by `super::`. `mod.rs` does not count: it names them all.
fn imports_inside(folder: &Path) -> Graph {
    let mut graph = Graph::new();
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let module = file.file_stem().unwrap().to_string_lossy().into_owned();
        if file.is_dir() || module == "mod" || file.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        graph.entry(module).or_default().extend(imported_modules(code, "super::"));
    }
    only_known(graph)
}

fn only_known(mut graph: Graph) -> Graph {
    let known: BTreeSet<_> = graph.keys().cloned().collect();
    for targets in graph.values_mut() {
        targets.retain(|target| known.contains(target));
    }
    graph
}

/// The folders below this one, at any depth.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.is_dir()).flat_map(|path| [folders(&path), vec![path]].concat()).collect()
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

/// A circle of the graph, if there is one.
fn circle(graph: &Graph) -> Option<String> {
    fn visit(
        node: &str,
        graph: &Graph,
        path: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> Option<String> {
        if let Some(start) = path.iter().position(|seen| seen == node) {
            return Some(format!("{} -> {node}", path[start..].join(" -> ")));
        }
        if !done.contains(node) {
            path.push(node.to_owned());
            for target in graph.get(node).into_iter().flatten() {
                if let Some(circle) = visit(target, graph, path, done) {
                    return Some(circle);
                }
            }
            path.pop();
            done.insert(node.to_owned());
        }
        None
    }
    let mut done = BTreeSet::new();
    graph.keys().find_map(|node| visit(node, graph, &mut vec![], &mut done))
}
