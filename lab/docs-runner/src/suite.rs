//! Commands that run a part of the test suite. CI runs the whole suite once; here it is checked that the parts exist.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use crate::{clone, page::commands};

/// What a page names as a part of the suite and the sources do not have, or nothing.
pub(crate) fn unknown_part(checkout: &Path, text: &str) -> Result<Option<String>> {
    let files = clone::run(
        checkout,
        "git",
        ["ls-files", "--cached", "--others", "--exclude-standard", "*.rs", "*.toml"],
    )?;
    for command in commands(text) {
        let words: Vec<_> = command.split(' ').skip_while(|word| word.contains('=')).collect();
        let arguments = match words.as_slice() {
            ["cargo", "test", rest @ ..] => rest,
            ["cargo", "demo", "test", rest @ ..] => rest,
            _ => return Ok(Some(format!("`{command}` runs no tests"))),
        };
        let mut arguments = arguments.iter().copied();
        while let Some(argument) = arguments.next() {
            let exists = match argument {
                "-p" | "--package" => match arguments.next() {
                    Some(name) => contain(checkout, &files, "Cargo.toml", &format!("name = \"{name}\""))?,
                    None => false,
                },
                "--test" => arguments.next().is_some_and(|name| {
                    let ends = [format!("tests/{name}.rs"), format!("tests/{name}/main.rs")];
                    files.lines().any(|file| ends.iter().any(|end| file.ends_with(end)))
                }),
                "--repeat" => arguments.next().is_some_and(|count| count.parse::<u32>().is_ok()),
                option if option.starts_with('-') => true,
                // A part of a test's name.
                name => contain(checkout, &files, ".rs", name)?,
            };
            if !exists {
                return Ok(Some(format!("`{command}`: there is no {argument}")));
            }
        }
    }
    Ok(None)
}

/// Whether a file whose path ends so has the text.
fn contain(checkout: &Path, files: &str, end: &str, text: &str) -> Result<bool> {
    for file in files.lines().filter(|file| file.ends_with(end)) {
        let content =
            fs::read_to_string(checkout.join(file)).with_context(|| format!("failed to read {file}"))?;
        if content.contains(text) {
            return Ok(true);
        }
    }
    Ok(false)
}
