//! What is checked against the sources without running a block: names, parts of the suite, lines of CI, and changes.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

use crate::page::{Block, How, Page, commands};

/// Runs a command to its end and returns what it printed.
pub(crate) fn output_of(directory: &Path, program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .output()
        .with_context(|| format!("failed to start {program}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "failed to run {program}: {}: {}", output.status, errors.trim());
    String::from_utf8(output.stdout).with_context(|| format!("failed to read the output of {program}"))
}

/// The files that git knows or would add, that exist, and whose names end so.
pub(crate) fn files(checkout: &Path, end: &str) -> Result<Vec<String>> {
    let listed = output_of(checkout, "git", &["ls-files", "--cached", "--others", "--exclude-standard"])?;
    let files: BTreeSet<_> =
        listed.lines().filter(|file| file.ends_with(end) && checkout.join(file).is_file()).collect();
    Ok(files.into_iter().map(str::to_owned).collect())
}

/// PostgreSQL's and RabbitMQ's own names, of which nothing here makes use.
const OF_THE_SERVERS: [&str; 4] =
    ["max_slot_wal_keep_size", "pg_current_wal_lsn", "pg_logical_emit_message", "quorum_commands_soft_limit"];

/// The long names on the pages, for example of tests and of some metrics, that no source has, as lines to print, and how
/// many were looked for.
pub(crate) fn unknown_names(root: &Path, pages: &[Page]) -> Result<(Vec<String>, usize)> {
    let mut known: BTreeSet<_> = OF_THE_SERVERS.map(str::to_owned).into();
    for file in files(root, "")? {
        // Files have names too.
        known.extend(names(&file).map(str::to_owned));
        // What is not text, for example a picture, has no names.
        let Some(text) = fs::read_to_string(root.join(&file)).ok().filter(|_| !file.ends_with(".md")) else {
            continue;
        };
        known.extend(names(&text).map(str::to_owned));
    }
    let (mut unknown, mut checked) = (Vec::new(), 0);
    for page in pages {
        for (line, code) in &page.code {
            for name in names(code) {
                checked += 1;
                if !known.contains(name) {
                    unknown.push(format!("{}:{line}: no source has `{name}`", page.path));
                }
            }
        }
    }
    Ok((unknown, checked))
}

/// The words that are long enough to be names that are meant as they stand: three underscores or more.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| {
        word.bytes().filter(|byte| *byte == b'_').count() >= 3
            && !word.bytes().any(|byte| byte.is_ascii_uppercase())
            && !word.starts_with('_')
    })
}

/// What is wrong with a block that another step of CI is said to run.
pub(crate) fn not_in_ci(block: &Block, checkout: &Path) -> Result<Option<String>> {
    match &block.how {
        How::ByCi { file } => absent_in(checkout, file, &block.text),
        How::PartOfTheSuite => unknown_part(checkout, &block.text),
        _ => Ok(None),
    }
}

/// A command that is no line of the file, which another step of CI runs. Of another page only what is run there counts.
fn absent_in(checkout: &Path, file: &str, text: &str) -> Result<Option<String>> {
    let content =
        fs::read_to_string(checkout.join(file)).with_context(|| format!("failed to read {file}"))?;
    let run = match file.ends_with(".md") {
        true => Page::parse(file, &content)?.run_commands(),
        false => commands(&content),
    };
    let absent = commands(text).into_iter().find(|command| !run.contains(command));
    Ok(absent.map(|command| format!("{file} has no line `{command}`")))
}

/// What a block names as a part of the suite and the sources do not have.
fn unknown_part(checkout: &Path, text: &str) -> Result<Option<String>> {
    let contain = |end: &str, text: &str| -> Result<bool> {
        let files = files(checkout, end)?;
        Ok(files.iter().any(|file| fs::read_to_string(checkout.join(file)).is_ok_and(|it| it.contains(text))))
    };
    for command in commands(text) {
        let words: Vec<_> = command.split(' ').skip_while(|word| word.contains('=')).collect();
        let (["cargo", "test", arguments @ ..] | ["cargo", "demo", "test", arguments @ ..]) = &words[..]
        else {
            return Ok(Some(format!("`{command}` runs no tests")));
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().copied().unwrap_or("(nothing)");
            let exists = match *argument {
                "-p" | "--package" => contain("Cargo.toml", &format!("name = \"{}\"", value()))?,
                "--test" => {
                    let name = value();
                    !files(checkout, &format!("tests/{name}.rs"))?.is_empty()
                        || !files(checkout, &format!("tests/{name}/main.rs"))?.is_empty()
                }
                "--repeat" => value().parse::<u32>().is_ok(),
                option if option.starts_with('-') => true,
                // A part of a test's name.
                name => contain(".rs", name)?,
            };
            if !exists {
                return Ok(Some(format!("`{command}`: there is no {argument}")));
            }
        }
    }
    Ok(None)
}

/// A page's changes that git cannot apply to the code as it is: each one's line in the page, and what git says. So a changed
/// line that a page quotes is found in a second, not by the run of all pages.
///
/// A reader applies them one after the other. A page may put its changes aside in between, so one that fits the unchanged code
/// is right too.
pub(crate) fn unfit_changes(page: &Page, checkout: &Path) -> Result<Vec<(usize, String)>> {
    let (mut applied, mut unfit) = (String::new(), Vec::new());
    for block in page.blocks.iter().filter(|block| matches!(block.how, How::Patch)) {
        let all = format!("{applied}{}", block.text);
        match refusal(&all, checkout)? {
            None => applied = all,
            Some(why) if refusal(&block.text, checkout)?.is_some() => unfit.push((block.line, why)),
            Some(_) => {}
        }
    }
    Ok(unfit)
}

/// Why git cannot apply a change to the files as they are.
fn refusal(change: &str, checkout: &Path) -> Result<Option<String>> {
    let file = checkout.join("target/docs-runner/change");
    fs::create_dir_all(checkout.join("target/docs-runner"))
        .context("failed to make the directory of changes")?;
    fs::write(&file, change).context("failed to write a change")?;
    let mut git = Command::new("git");
    git.args(["apply", "--check"]).arg(&file).current_dir(checkout);
    let output = git.output().context("failed to start git")?;
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok(Some(why).filter(|_| !output.status.success()))
}
