//! A clone of the repository in which pages are run: what they change is gone afterwards.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

/// A clone of the checkout, with the changes that are not committed yet.
pub(crate) struct Clone {
    pub(crate) directory: PathBuf,
    checkout: PathBuf,
}

impl Clone {
    /// A clone below the checkout's `target`. [`renew`](Self::renew) makes it.
    pub(crate) fn of(checkout: &Path) -> Self {
        Self { directory: checkout.join("target/docs-runner/clone"), checkout: checkout.to_owned() }
    }

    /// Makes the clone, in place of the one that an earlier page has used.
    pub(crate) fn renew(&self) -> Result<()> {
        if self.directory.exists() {
            fs::remove_dir_all(&self.directory).context("failed to delete the clone of an earlier page")?;
        }
        run(&self.checkout, "git", ["clone", "--quiet", "--shared", ".", "target/docs-runner/clone"])?;
        self.copy_changes()?;
        self.link_what_is_built()
    }

    /// Makes its files those of the checkout, with their times: cargo compares times to find what has changed.
    fn copy_changes(&self) -> Result<()> {
        let wanted = files(&self.checkout)?;
        for file in files(&self.directory)?.difference(&wanted) {
            fs::remove_file(self.directory.join(file)).with_context(|| format!("failed to delete {file}"))?;
        }
        for file in &wanted {
            self.copy(file).with_context(|| format!("failed to copy {file}"))?;
        }
        Ok(())
    }

    fn copy(&self, file: &str) -> Result<()> {
        let (from, to) = (self.checkout.join(file), self.directory.join(file));
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        // Unlike `write`, it keeps the file's permissions.
        fs::copy(&from, &to)?;
        File::options().append(true).open(&to)?.set_modified(fs::metadata(&from)?.modified()?)?;
        Ok(())
    }

    /// Links what cargo has built for the checkout into the clone: cargo names its files by paths inside of the workspace,
    /// so a page builds only what it changes.
    fn link_what_is_built(&self) -> Result<()> {
        let built = self.checkout.join("target/debug");
        let own = self.directory.join("target/debug");
        fs::create_dir_all(&own)?;
        // Cargo writes into files of `.fingerprint`, so those are copied. It replaces all others.
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
