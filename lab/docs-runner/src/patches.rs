//! The changes of the code on the pages: each fits the code as it is, so a changed line that a page quotes is found in a
//! second, not by the run of all pages.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};

use crate::page::{Content, Page};

/// A page's changes that git cannot apply: each one's line in the page, and what git says.
///
/// They are applied one after the other, as a reader does, to an index of its own: no file is changed. A page may put its
/// changes aside in between, so one that fits the unchanged code is right too.
pub(crate) fn unfit(page: &Page, checkout: &Path) -> Result<Vec<(usize, String)>> {
    let changes: Vec<_> = page
        .blocks
        .iter()
        .filter_map(|block| match &block.content {
            Content::Patch { text } => Some((block.line, text)),
            _ => None,
        })
        .collect();
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    let directory = checkout.join("target/docs-runner/indexes");
    // An ended run may have left a lock.
    if directory.exists() {
        fs::remove_dir_all(&directory).context("failed to delete the indexes of an earlier run")?;
    }
    fs::create_dir_all(&directory).context("failed to make the directory for indexes")?;
    let (plain, changed) = (directory.join("plain.index"), directory.join("changed.index"));
    git(checkout, &plain, &["add", "--all"], "")?.map_err(anyhow::Error::msg)?;
    fs::copy(&plain, &changed).context("failed to copy an index")?;
    let mut unfit = Vec::new();
    for (line, text) in changes {
        let Err(why) = git(checkout, &changed, &["apply", "--cached"], text)? else { continue };
        if git(checkout, &plain, &["apply", "--cached", "--check"], text)?.is_err() {
            unfit.push((line, why));
        }
    }
    Ok(unfit)
}

/// Runs git with this index and this input. The inner error is what git says.
fn git(checkout: &Path, index: &Path, arguments: &[&str], input: &str) -> Result<Result<(), String>> {
    let mut git = Command::new("git")
        .args(arguments)
        .current_dir(checkout)
        .env("GIT_INDEX_FILE", index)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("failed to start git")?;
    // Closed at the end of the statement. Git reads all of it before it says anything.
    git.stdin
        .take()
        .context("git has no input")?
        .write_all(input.as_bytes())
        .context("failed to write to git")?;
    let output = git.wait_with_output().context("failed to wait for git")?;
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok(if output.status.success() { Ok(()) } else { Err(why) })
}
