//! The migrations, as the code and the pages name them. Of a function that is defined twice, readers find the older text.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and end")]

use std::{ffi::OsStr, fs, path::Path};

/// The paths and texts of the sources and pages below a folder, without tests.
fn files(folder: &Path) -> Vec<(String, String)> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let below = paths.flat_map(|path| match path.extension().and_then(OsStr::to_str) {
        None if path.is_dir() && !path.ends_with("tests") => files(&path),
        Some("rs" | "sql" | "md") => vec![(path.display().to_string(), fs::read_to_string(path).unwrap())],
        _ => vec![],
    });
    below.collect()
}

/// The words between one of `starts` and `end`.
fn words<'a>(text: &'a str, starts: &'a [&str], end: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(end).filter_map(|(at, _)| {
        let before = text[..at].trim_end_matches(|letter: char| letter.is_alphanumeric() || letter == '_');
        starts.iter().any(|start| before.ends_with(start)).then(|| &text[before.len()..at])
    })
}

#[test]
fn each_function_is_defined_once_and_each_migration_that_is_named_exists() {
    let files = |folder| files(&testbed::workspace_root().unwrap().join(folder));
    let all = [files("migrations"), files("examples/mailer/migrations")].concat();
    for (path, text) in &["services", "shared", "docs", "migrations"].map(files).concat() {
        for name in words(text, &["select ", "from ", "function "], "(").filter(|it| it.contains("box_")) {
            let defined = all.iter().flat_map(|(_, sql)| words(sql, &["function "], "("));
            assert_eq!(defined.filter(|other| *other == name).count(), 1, "{path}: {name}");
        }
        for name in words(text, &["`", "/"], ".sql").filter(|it| it.starts_with(char::is_numeric)) {
            assert!(all.iter().any(|(file, _)| file.ends_with(&format!("/{name}.sql"))), "{path}: {name}");
        }
    }
}
