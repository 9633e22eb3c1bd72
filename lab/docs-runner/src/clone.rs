//! A clone of the repository in which pages are run: what they change is gone afterwards.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

/// The crates that compute for minutes, and are always optimised. The others mostly wait.
const COMPUTING: [&str; 2] = ["model", "simulation"];

/// A clone of the checkout, with the changes that are not committed yet.
pub(crate) struct Clone {
    pub(crate) directory: PathBuf,
    checkout: PathBuf,
}

impl Clone {
    /// Makes the clone below the checkout's `target`, or renews the one that an earlier run left there: what has been
    /// built in it is kept.
    pub(crate) fn make(checkout: &Path) -> Result<Self> {
        let directory = checkout.join("target/docs-runner/clone");
        let clone = Self { directory, checkout: checkout.to_owned() };
        if !clone.directory.exists() {
            run(checkout, "git", ["clone", "--quiet", "--shared", ".", "target/docs-runner/clone"])?;
            clone.link_built_dependencies()?;
        } else if run(checkout, "git", ["rev-parse", "--quiet", "--verify", "HEAD"]).is_ok() {
            // The commit of today: a page may use `git diff` or `git restore`.
            run(&clone.directory, "git", ["fetch", "--quiet", "origin", "HEAD"])?;
            run(&clone.directory, "git", ["reset", "--quiet", "FETCH_HEAD"])?;
        }
        Ok(clone)
    }

    /// Makes its files those of the checkout again. Files that are the same keep their time: cargo builds by it.
    pub(crate) fn renew(&self) -> Result<()> {
        let wanted = files(&self.checkout)?;
        for file in files(&self.directory)?.difference(&wanted) {
            fs::remove_file(self.directory.join(file)).with_context(|| format!("failed to delete {file}"))?;
        }
        for file in &wanted {
            let (from, to) = (self.checkout.join(file), self.directory.join(file));
            let content = fs::read(&from).with_context(|| format!("failed to read {file}"))?;
            if fs::read(&to).is_ok_and(|found| found == content) {
                continue;
            }
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent)
                    .with_context(|| format!("failed to make the directory of {file}"))?;
            }
            // Unlike `write`, it keeps the file's permissions.
            fs::copy(&from, &to).with_context(|| format!("failed to copy {file}"))?;
        }
        Ok(())
    }

    /// Links what cargo has built for the checkout into the clone, so that it builds only this workspace's crates again:
    /// cargo names their files by the path of the workspace, those of dependencies by their source.
    fn link_built_dependencies(&self) -> Result<()> {
        let built = self.checkout.join("target/release");
        let own = self.directory.join("target/release");
        fs::create_dir_all(&own)?;
        // Cargo writes into files of `.fingerprint`, so those are copied.
        for (part, how) in [("deps", "-al"), ("build", "-al"), (".fingerprint", "-a")] {
            let from = built.join(part);
            if from.exists() {
                let arguments: [&OsStr; 3] = [how.as_ref(), from.as_os_str(), own.as_os_str()];
                run(&self.checkout, "cp", arguments)?;
            }
        }
        Ok(())
    }
}

/// Chooses what cargo builds in the clone: what a reader's cargo does, or, not `optimised`, the same in a sixth of the
/// processor time. It matters because labs that change the code build most crates again. Cargo finds the setting in the
/// folder above the clone, so the clone's own files are those of a reader.
pub(crate) fn choose_optimisation(checkout: &Path, optimised: bool) -> Result<()> {
    let mut config = "[profile.release.package]\n".to_owned();
    if !optimised && checkout.join("Cargo.toml").exists() {
        let tree = run(checkout, "cargo", ["tree", "--workspace", "--depth=0", "--prefix=none"])?;
        let names = tree.lines().filter_map(|line| line.split_whitespace().next());
        for name in names.filter(|name| !COMPUTING.contains(name)) {
            config += &format!("{name}.opt-level = 0\n");
        }
    }
    let folder = checkout.join("target/docs-runner/.cargo");
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(folder.join("config.toml"), config))
        .context("failed to write cargo's settings for the clone")
}

/// Runs a command to its end and returns what it printed.
pub(crate) fn run<S: AsRef<OsStr>>(
    directory: &Path,
    program: &str,
    arguments: impl IntoIterator<Item = S>,
) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .output()
        .with_context(|| format!("failed to start {program}"))?;
    ensure!(
        output.status.success(),
        "failed to run {program}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    String::from_utf8(output.stdout).with_context(|| format!("failed to read the output of {program}"))
}

/// The files of a checkout that git knows or would add, and that exist.
fn files(directory: &Path) -> Result<BTreeSet<String>> {
    let listed = run(directory, "git", ["ls-files", "--cached", "--others", "--exclude-standard"])?;
    Ok(listed.lines().filter(|file| directory.join(file).is_file()).map(str::to_owned).collect())
}
