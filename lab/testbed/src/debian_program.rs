//! Programs of this machine, or out of Debian's packages.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::process::Command;

use crate::binaries::workspace_root;
use crate::command::output;

/// A package has about 30 MB.
const FETCH_DEADLINE: Duration = Duration::from_secs(600);

/// A program that is a package's.
#[derive(Clone, Copy, Debug)]
pub struct DebianProgram {
    /// Its name in the search path.
    pub program: &'static str,
    /// The package of Debian and Ubuntu.
    pub package: &'static str,
}

impl DebianProgram {
    /// Finds the program, in the search path or where [`fetch`](Self::fetch) has put it.
    pub fn find(&self) -> Result<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let in_path = std::env::split_paths(&path).map(|folder| folder.join(self.program));
        let unpacked = self.folder().ok().map(|folder| self.unpacked(&folder));
        in_path.chain(unpacked).find(|program| program.is_file()).with_context(|| {
            format!("{} is not installed: `apt-get install -y {}`", self.program, self.package)
        })
    }

    /// Downloads the package and unpacks it below `target`: installed, it would start a server. Needs no root.
    pub async fn fetch(&self) -> Result<PathBuf> {
        let folder = self.folder()?;
        std::fs::create_dir_all(&folder)?;
        let script = r#"apt-get download -qq "$1" || { apt-get update -qq && apt-get download -qq "$1"; }
                        dpkg -x "$1"_*.deb ."#;
        let mut command = Command::new("sh");
        command.args(["-ec", script, "fetch", self.package]).current_dir(&folder);
        let fetched = output(&mut command, FETCH_DEADLINE).await?;
        if !fetched.status.success() {
            let reason = String::from_utf8_lossy(&fetched.stderr);
            bail!("failed to fetch {}: {}", self.package, reason.trim());
        }
        let program = self.unpacked(&folder);
        ensure!(program.is_file(), "Debian's package has no {}", program.display());
        Ok(program)
    }

    fn folder(&self) -> Result<PathBuf> {
        let root = workspace_root().context("packages are fetched into a checkout")?;
        Ok(root.join("target").join(self.package))
    }

    fn unpacked(&self, folder: &Path) -> PathBuf {
        folder.join("usr/bin").join(self.program)
    }
}
