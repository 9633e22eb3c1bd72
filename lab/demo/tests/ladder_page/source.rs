//! The source files of the product, and who owns which of their lines.

use std::{collections::BTreeMap, fs, ops::Range, path::Path};

/// The workspace.
pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// How many lines of a file an owner has.
pub(crate) struct Share {
    /// The short name, for example `outbox/relay.rs`.
    pub(crate) file: String,
    /// From the root of the repository.
    pub(crate) path: String,
    pub(crate) lines: usize,
}

/// Divides every line of the product among owners, and returns the shares of each, and how many lines there are.
///
/// The parts of an owner are files (`outbox/relay.rs`), and items of files (`outbox/relay.rs: RelayStatus log_change`). A file
/// belongs to the owner that names it, without the items that others name.
pub(crate) fn divide(owners: &[&Vec<String>]) -> (Vec<Vec<Share>>, usize) {
    let files = files();
    let mut of_files = BTreeMap::new();
    let mut of_lines: BTreeMap<_, _> =
        files.iter().map(|(file, (_, text))| (file.as_str(), vec![None; text.lines().count()])).collect();
    for (owner, part) in
        (0..).zip(owners).flat_map(|(owner, parts)| parts.iter().map(move |it| (owner, it.as_str())))
    {
        let (file, items) = part.split_once(": ").unwrap_or((part, ""));
        let (_, text) = files.get(file).unwrap_or_else(|| panic!("there is no {file}"));
        if items.is_empty() {
            assert_eq!(of_files.insert(file, owner), None, "{file} has two owners");
        }
        for item in items.split(' ').filter(|item| !item.is_empty()) {
            let found = items_named(item, &text.lines().collect::<Vec<_>>());
            assert!(!found.is_empty(), "{file} has no {item}");
            for line in found.into_iter().flatten() {
                let has = of_lines.get_mut(file).unwrap()[line].get_or_insert(owner);
                assert_eq!(*has, owner, "{file}:{}: {item} has two owners", line + 1);
            }
        }
    }
    let mut shares: Vec<Vec<Share>> = owners.iter().map(|_| vec![]).collect();
    for (file, lines) in &of_lines {
        let mut counts = BTreeMap::new();
        for owner in lines {
            let owner = owner.or_else(|| of_files.get(file).copied());
            *counts.entry(owner.unwrap_or_else(|| panic!("{file} has no owner"))).or_default() += 1;
        }
        for (owner, lines) in counts {
            shares[owner].push(Share { file: (*file).to_owned(), path: files[*file].0.clone(), lines });
        }
    }
    (shares, of_lines.values().map(Vec::len).sum())
}

/// The short name of each source file of the product, with its path and its text.
fn files() -> BTreeMap<String, (String, String)> {
    let mut files = BTreeMap::new();
    for place in ["services", "shared"] {
        for part in fs::read_dir(Path::new(ROOT).join(place)).unwrap() {
            let part = part.unwrap().file_name().into_string().unwrap();
            add_files(&format!("{place}/{part}/src"), &part, &mut files);
        }
    }
    files
}

fn add_files(folder: &str, short: &str, files: &mut BTreeMap<String, (String, String)>) {
    for entry in fs::read_dir(Path::new(ROOT).join(folder)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let (path, short) = (format!("{folder}/{name}"), format!("{short}/{name}"));
        if entry.file_type().unwrap().is_dir() {
            add_files(&path, &short, files);
        } else {
            files.insert(short, (path, fs::read_to_string(entry.path()).unwrap()));
        }
    }
}

/// The lines of all items of this name, each from the comment before it to its end. An `impl` block has the name of its type.
fn items_named(name: &str, lines: &[&str]) -> Vec<Range<usize>> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let range = |(at, is_value): (usize, bool)| {
        let is_beside = |line: &str| indent(line) == indent(lines[at]);
        let is_about = |line: &&&str| is_beside(line) && line.trim_start().starts_with(['/', '#']);
        let begin = at - lines[..at].iter().rev().take_while(is_about).count();
        let is_end = |line: &&str| {
            line.ends_with(';') && (is_value || is_beside(line)) || line.ends_with('}') && is_beside(line)
        };
        begin..at + lines[at..].iter().position(is_end).unwrap() + 1
    };
    let named = lines.iter().enumerate().filter_map(|(at, line)| {
        let (found, is_value) = name_of(line)?;
        (found == name).then_some((at, is_value))
    });
    named.map(range).collect()
}

/// The name of the item that begins in a line, and whether it has a value instead of a body.
fn name_of(line: &str) -> Option<(&str, bool)> {
    let mut words =
        line.trim_start().split(' ').skip_while(|word| word.starts_with("pub") || *word == "async");
    let (name, is_value) = match words.next()? {
        "fn" | "struct" | "enum" | "trait" | "mod" => (words.next()?, false),
        "const" | "static" | "type" => (words.next()?, true),
        word if word.starts_with("impl") => {
            let line = line.trim_end_matches(" {");
            let line = line.strip_suffix('>').and_then(|line| line.rsplit_once('<')).map_or(line, |it| it.0);
            (line.rsplit(' ').next()?, false)
        }
        _ => return None,
    };
    Some((name.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()?, is_value))
}
