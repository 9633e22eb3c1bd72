//! The number of files of this workspace that each of the pattern's three steps needs to compile. Whoever copies a step needs
//! these too. The test follows the paths in the code, so it misses what only a macro names.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The file of a step, and how many files it may need. One more: say in the commit what the reader gets for it.
const STEPS: [(&str, usize); 3] = [
    ("services/orders/src/place_order.rs", 20),
    ("shared/messaging/src/relay.rs", 6),
    ("services/inventory/src/stock_handler.rs", 18),
];

#[test]
fn each_step_needs_few_files() {
    let workspace = Workspace::read();
    for (step, most) in STEPS {
        let needed = workspace.needed_by(&testbed::workspace_root().unwrap().join(step));
        println!("{step} needs {} files: {needed:#?}", needed.len());
        assert!(needed.len() <= most, "{step} needs {} files, not {most}: {needed:#?}", needed.len());
    }
}

/// A module: its file, the modules below it, and the names that it re-exports.
#[derive(Default)]
struct Module {
    file: PathBuf,
    children: BTreeMap<String, Module>,
    reexports: BTreeMap<String, Vec<String>>,
}

struct Workspace(BTreeMap<String, Module>);

impl Workspace {
    /// The libraries of the product.
    fn read() -> Self {
        let root = testbed::workspace_root().unwrap();
        let mut crates = BTreeMap::new();
        for folder in ["services", "shared"] {
            for entry in fs::read_dir(root.join(folder)).unwrap() {
                let path = entry.unwrap().path();
                let (name, lib) = (path.file_name().unwrap().to_string_lossy(), path.join("src/lib.rs"));
                if lib.exists() {
                    crates.insert(name.replace('-', "_"), Module::read(&lib, &path.join("src")));
                }
            }
        }
        Self(crates)
    }

    fn needed_by(&self, step: &Path) -> BTreeSet<PathBuf> {
        let (mut needed, mut next) = (BTreeSet::new(), vec![step.to_owned()]);
        while let Some(file) = next.pop() {
            if needed.insert(file.clone()) {
                next.extend(self.named_in(&file));
            }
        }
        needed
    }

    /// The files of the workspace that a file names.
    fn named_in(&self, file: &Path) -> Vec<PathBuf> {
        let code = code(file);
        let (own, module) = self.place_of(file);
        let starts = self.0.keys().map(String::as_str).chain(["crate", "super"]);
        starts
            .flat_map(|start| paths_from(&code, start).into_iter().map(move |path| (start, path)))
            .filter_map(|(start, path)| match start {
                "crate" => self.resolve(&own, &path),
                "super" => self.resolve(&own, &[&module[..module.len().saturating_sub(1)], &path].concat()),
                other => self.resolve(other, &path),
            })
            .collect()
    }

    /// The crate of a file, and the path of its module.
    fn place_of(&self, file: &Path) -> (String, Vec<String>) {
        let found = self.0.iter().find_map(|(name, root)| Some((name.clone(), root.path_to(file)?)));
        found.unwrap_or_else(|| panic!("{} is in no crate", file.display()))
    }

    /// The file in which an item of a crate is defined.
    fn resolve(&self, name: &str, path: &[String]) -> Option<PathBuf> {
        let root = self.0.get(name)?;
        // A re-export of another crate's item.
        if let Some(other) =
            path.first().filter(|first| self.0.contains_key(*first) && !root.children.contains_key(*first))
        {
            return self.resolve(other, &path[1..]);
        }
        let mut module = root;
        for segment in path {
            match (module.children.get(segment), module.reexports.get(segment)) {
                (Some(child), _) => module = child,
                (None, Some(to)) if to != path => return self.resolve(name, to),
                _ => break,
            }
        }
        Some(module.file.clone())
    }
}

impl Module {
    fn read(file: &Path, folder: &Path) -> Self {
        let code = code(file);
        let mut children = BTreeMap::new();
        for declared in code.split("mod ").skip(1) {
            let name: String = declared.chars().take_while(|letter| is_word(*letter)).collect();
            let nested = folder.join(&name);
            for file in [nested.with_extension("rs"), nested.join("mod.rs")] {
                if file.exists() {
                    children.insert(name.clone(), Self::read(&file, &nested));
                }
            }
        }
        let names = children.keys().cloned().collect::<Vec<_>>();
        let uses = code.split("pub use ").skip(1).map(|text| text.split(';').next().unwrap_or_default());
        let mut reexports = BTreeMap::new();
        for (text, child) in uses.flat_map(|text| names.iter().map(move |name| (text, name))) {
            for path in paths_from(text, child) {
                let item = path.last().unwrap_or(child).clone();
                reexports.insert(item, [vec![child.clone()], path].concat());
            }
        }
        Self { file: file.to_owned(), children, reexports }
    }

    fn path_to(&self, file: &Path) -> Option<Vec<String>> {
        if self.file == file {
            return Some(vec![]);
        }
        self.children
            .iter()
            .find_map(|(name, child)| Some([vec![name.clone()], child.path_to(file)?].concat()))
    }
}

/// The code of a file, without comments and inline tests. What it only re-exports it does not need.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let code = text.split("#[cfg(test)]").next().unwrap();
    code.lines().map(|line| format!("{}\n", line.split("//").next().unwrap())).collect()
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// What follows `start::` wherever it stands, in one path or in several in braces.
fn paths_from(code: &str, start: &str) -> Vec<Vec<String>> {
    let begin = format!("{start}::");
    let matches = code.match_indices(&begin).filter(|(at, _)| {
        let before = code[..*at].chars().next_back();
        before.is_none_or(|letter| !is_word(letter) && letter != ':')
    });
    matches.flat_map(|(at, _)| tree(&code[at + begin.len()..])).collect()
}

/// The paths of a use tree at the beginning of a text.
fn tree(text: &str) -> Vec<Vec<String>> {
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        let (mut depth, mut begin, mut paths) = (0, 0, vec![]);
        for (at, letter) in group.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' if depth == 0 => {
                    paths.extend(tree(&group[begin..at]));
                    begin = at + 1;
                }
                '}' => {
                    paths.extend(tree(&group[begin..at]));
                    break;
                }
                _ => {}
            }
        }
        return paths;
    }
    let name: String = text.chars().take_while(|letter| is_word(*letter)).collect();
    match text[name.len()..].strip_prefix("::") {
        _ if name.is_empty() => vec![],
        Some(rest) if rest.starts_with(|letter| is_word(letter) || letter == '{') => {
            tree(rest).into_iter().map(|path| [vec![name.clone()], path].concat()).collect()
        }
        _ => vec![vec![name]],
    }
}

#[test]
fn use_trees_and_paths_are_read() {
    let code = "use crate::{a::{B, C}, d,};\nlet x = crate::e::f(); my_crate::g();";
    let expected = [vec!["a", "B"], vec!["a", "C"], vec!["d"], vec!["e", "f"]];
    assert_eq!(paths_from(code, "crate"), expected);
}
