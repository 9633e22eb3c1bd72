//! `--without NAME`: the same command, in a copy of this checkout without one protection.
//!
//! Each file of `lab/without` takes one protection out of the product. It is a diff, so anyone can read it, and apply it by
//! hand with `git apply`. The product has no code for this, and nothing stands in for a part of the product: what runs is the
//! product, built once more. Above its diff each file says what is missing, and which commands must fail then.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use uuid::Uuid;

use crate::Verdict;

/// The folder of the diffs, below the checkout.
const DIFFS: &str = "lab/without";
/// The folder of the copy, below the checkout. It is always the same, so that cargo builds only what differs from the last
/// time.
const COPY: &str = "target/without";
/// What begins a line of a diff's head that names a command which must fail.
const FAILS: &str = "fails: cargo demo ";
/// Folders that hold no sources.
const NOT_COPIED: [&str; 3] = [".git", "target", "node_modules"];
/// The environment variable that tells the copy's programs which protection is missing.
const VARIABLE: &str = "DEMO_WITHOUT";

/// Whether this process runs in a copy without a protection. Images and running containers are of the complete product.
pub(crate) fn is_copy() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// A protection, and how it is taken out.
#[derive(Debug, Clone)]
pub struct Protection {
    /// The name of its file, without the ending.
    pub name: String,
    /// The arguments of `cargo demo` that must fail without it, as the file has them.
    checks: Vec<String>,
    diff: PathBuf,
}

impl Protection {
    /// All that can be taken out, by name. None if there is no checkout.
    pub fn all() -> Result<Vec<Self>> {
        let Some(root) = testbed::workspace_root() else { return Ok(vec![]) };
        let folder = root.join(DIFFS);
        let listed = fs::read_dir(&folder).with_context(|| format!("failed to list {}", folder.display()))?;
        let mut all = vec![];
        for entry in listed {
            let path = entry?.path();
            if path.extension().is_some_and(|it| it == "diff") {
                all.push(Self::read(&path)?);
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let head = text.split_once("\n--- ").with_context(|| format!("{name} has no diff"))?.0;
        let checks = head.lines().filter_map(|line| line.strip_prefix(FAILS)).map(str::to_owned).collect();
        Ok(Self { name, checks, diff: path.to_owned() })
    }

    /// The arguments of `cargo demo` that must fail, with `--without`.
    pub fn commands(&self) -> impl Iterator<Item = String> {
        self.checks.iter().map(|check| match check.split_once(" -- ") {
            Some((command, for_cargo)) => format!("{command} --without {} -- {for_cargo}", self.name),
            None => format!("{check} --without {}", self.name),
        })
    }

    fn named(name: &str) -> Result<Self> {
        let all = Self::all()?;
        if let Some(found) = all.iter().find(|it| it.name == name) {
            return Ok(found.clone());
        }
        let names: Vec<_> = all.into_iter().map(|it| it.name).collect();
        bail!("there is no protection `{name}` in {DIFFS}: it has {}", names.join(", "))
    }
}

/// Runs the command of this process in a copy of the checkout without the protection. Returns only if that fails.
///
/// # Errors
/// Outside a checkout, when there is no such protection, or when its diff does not fit the sources.
pub(crate) fn run(name: &str, is_quiet: bool) -> Result<Verdict> {
    let root = testbed::workspace_root().context("--without builds the product, so it needs a checkout")?;
    let protection = Protection::named(name)?;
    if !is_quiet {
        eprintln!("{}\n", fs::read_to_string(&protection.diff)?);
    }
    // With a separate target directory, in which the judge looks for the relays that it builds.
    let copy = root.join(COPY);
    let target = copy.join("target");
    copy_sources(&root, &copy, &changed_files(&root, &protection)?)?;
    reuse_dependencies(&root, &target)?;
    let mut cargo = testbed::cargo().into_std();
    cargo.current_dir(&copy).env("CARGO_TARGET_DIR", &target).env(VARIABLE, name);
    // The complete product is built, and may be running: neither is meant.
    cargo.env_remove("TESTBED_PREBUILT").env_remove("DEMO_HOME");
    cargo.args(["run", "--bin", "demo"]);
    if is_quiet {
        cargo.arg("--quiet");
    }
    cargo.args(testbed::profile_option()).arg("--").args(arguments());
    // In place of this process, so that Ctrl-C reaches what repairs the system.
    Err(cargo.exec()).context("failed to run cargo")
}

/// The arguments of this process, except `--without` and its value.
fn arguments() -> Vec<OsString> {
    let mut all = std::env::args_os().skip(1);
    let mut kept = vec![];
    while let Some(argument) = all.next() {
        match argument.to_str() {
            Some("--without") => drop(all.next()),
            Some(text) if text.starts_with("--without=") => {}
            _ => kept.push(argument),
        }
    }
    kept
}

/// A file of the checkout, and what the copy has in its place.
type Changed = (PathBuf, Vec<u8>);

/// Applies a diff to copies of the files that it names.
fn changed_files(root: &Path, protection: &Protection) -> Result<Vec<Changed>> {
    let text = fs::read_to_string(&protection.diff)?;
    let paths: Vec<_> =
        text.lines().filter_map(|line| line.strip_prefix("+++ b/")).map(PathBuf::from).collect();
    ensure!(!paths.is_empty(), "{} changes no file", protection.name);
    let scratch = std::env::temp_dir().join(format!("without-{}", Uuid::new_v4()));
    let changed = apply(root, protection, &paths, &scratch);
    let _ = fs::remove_dir_all(scratch);
    changed
}

fn apply(
    root: &Path,
    Protection { name, diff, .. }: &Protection,
    paths: &[PathBuf],
    scratch: &Path,
) -> Result<Vec<Changed>> {
    for path in paths {
        let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
        ensure!(is_below, "{name} changes {}", path.display());
        let to = scratch.join(path);
        fs::create_dir_all(to.parent().context("a file of the checkout")?)?;
        fs::copy(root.join(path), &to).with_context(|| format!("failed to copy {}", path.display()))?;
    }
    let applied = Command::new("git")
        .arg("apply")
        .arg(diff)
        .current_dir(scratch)
        // Inside another checkout, git would apply nothing, and call that a success.
        .env("GIT_CEILING_DIRECTORIES", scratch.parent().unwrap_or(scratch))
        .output()
        .context("failed to run git")?;
    ensure!(
        applied.status.success(),
        "{DIFFS}/{name}.diff does not fit the sources: {}",
        String::from_utf8_lossy(&applied.stderr).trim()
    );
    let changed = paths.iter().map(|path| {
        let text = fs::read(scratch.join(path))?;
        ensure!(
            fs::read(root.join(path))? != text,
            "{DIFFS}/{name}.diff changes nothing in {}",
            path.display()
        );
        Ok((path.clone(), text))
    });
    changed.collect()
}

/// Makes `to` a copy of the checkout, except for `changed`. A file that is already there is not written again: cargo would
/// build it again.
fn copy_sources(from: &Path, to: &Path, changed: &[Changed]) -> Result<()> {
    let mut sources = BTreeSet::new();
    list(from, Path::new(""), &mut sources)?;
    let mut old = BTreeSet::new();
    if to.exists() {
        list(to, Path::new(""), &mut old)?;
    }
    for path in old.difference(&sources) {
        fs::remove_file(to.join(path))?;
    }
    for path in &sources {
        let changed = changed.iter().find(|(it, _)| it == path);
        let wanted = changed.map_or_else(|| fs::read(from.join(path)), |(_, text)| Ok(text.clone()));
        let wanted = wanted.with_context(|| format!("failed to read {}", path.display()))?;
        let file = to.join(path);
        if fs::read(&file).is_ok_and(|is| is == wanted) {
            continue;
        }
        fs::create_dir_all(file.parent().context("a file of the checkout")?)?;
        fs::write(&file, wanted).with_context(|| format!("failed to write {}", file.display()))?;
        fs::set_permissions(&file, fs::metadata(from.join(path))?.permissions())?;
    }
    Ok(())
}

/// Lists the files below `folder`, relative to `root`.
fn list(root: &Path, folder: &Path, files: &mut BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() && !NOT_COPIED.iter().any(|name| path.ends_with(name)) {
            list(root, &path, files)?;
        } else if kind.is_file() {
            files.insert(path);
        }
    }
    Ok(())
}

/// Copies the dependencies that are built already into the copy's target directory: without them the first build takes
/// minutes longer. Not the crates of the workspace, whose files have the same names there.
fn reuse_dependencies(root: &Path, target: &Path) -> Result<()> {
    let profile = if testbed::profile_option().is_some() { "release" } else { "debug" };
    let (built, to) = (root.join("target").join(profile), target.join(profile));
    if to.exists() || !built.exists() {
        return Ok(());
    }
    let own = own_crates(root)?;
    for part in [".fingerprint", "build", "deps"] {
        let (from, to) = (built.join(part), to.join(part));
        fs::create_dir_all(&to)?;
        let mut names = vec![];
        for entry in fs::read_dir(&from).with_context(|| format!("failed to list {}", from.display()))? {
            let name = entry?.file_name();
            let text = name.to_string_lossy();
            // `serde-0123456789abcdef`, `libserde-0123456789abcdef.rlib`
            let crate_name = text.rsplit_once('-').map_or("", |(before, _)| before).replace('-', "_");
            let stem = if part == "deps" {
                crate_name.strip_prefix("lib").unwrap_or(&crate_name)
            } else {
                &crate_name
            };
            let is_library =
                part != "deps" || [".rlib", ".rmeta", ".so", ".d"].iter().any(|end| text.ends_with(end));
            if is_library && !own.contains(stem) {
                names.push(from.join(name));
            }
        }
        // What is missing after a failure, cargo builds.
        for some in names.chunks(500) {
            let _ = Command::new("cp").arg("-a").args(some).arg(&to).output();
        }
    }
    Ok(())
}

/// The names of the workspace's crates and of their tests, as files have them.
fn own_crates(root: &Path) -> Result<BTreeSet<String>> {
    let mut cargo = testbed::cargo().into_std();
    cargo.args(["metadata", "--format-version=1", "--no-deps", "--offline"]).current_dir(root);
    let output = cargo.output().context("failed to run cargo")?;
    let metadata: Value =
        serde_json::from_slice(&output.stdout).context("failed to read cargo's metadata")?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let named = packages.flat_map(|package| {
        let targets = package["targets"].as_array().into_iter().flatten();
        targets.map(|target| &target["name"]).chain([&package["name"]])
    });
    Ok(named.filter_map(Value::as_str).map(|name| name.replace('-', "_")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_diff_fits_the_sources_and_names_a_check() -> Result<()> {
        let root = testbed::workspace_root().context("a checkout")?;
        for protection in Protection::all()? {
            ensure!(!protection.checks.is_empty(), "{} names no check", protection.name);
            changed_files(&root, &protection)?;
        }
        Ok(())
    }
}
