//! A directory for a server's data that is erased at the end.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::binaries::target_dir;
use crate::guard::AtExit;
use crate::user::command_as;

/// A directory that only its owner can enter. It is erased when the value is dropped or when this process ends.
#[derive(Debug)]
pub(crate) struct PrivateDir {
    path: PathBuf,
    _erase: AtExit,
}

impl PrivateDir {
    /// Creates a directory for a server that runs as `user`, or as the current user if that is `None`.
    ///
    /// The directory is in cargo's target directory. If `user` cannot reach that (a checkout under `/root` is closed to
    /// other users), it is in the system's directory for temporary files.
    pub(crate) fn new(name: &str, user: Option<&str>) -> Result<Self> {
        let candidates = target_dir().map(|target| target.join("testbed"));
        let candidates = candidates.into_iter().chain([std::env::temp_dir().join("testbed")]);
        let mut reasons = Vec::new();
        for parent in candidates {
            let path = parent.join(format!("{name}-{}-{}", std::process::id(), fastrand::u32(..)));
            match create(&path, user) {
                Ok(erase) => return Ok(Self { path, _erase: erase }),
                Err(reason) => reasons.push(format!("{reason:#}")),
            }
        }
        bail!("failed to create a directory for {name}: {}", reasons.join("; "))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn create(path: &Path, user: Option<&str>) -> Result<AtExit> {
    let erase = AtExit::erase(path)?;
    fs::create_dir_all(path).with_context(|| format!("failed to create {}", path.display()))?;
    fs::set_permissions(path, Permissions::from_mode(0o700))?;
    if let Some(user) = user {
        let chown = Command::new("chown").arg(user).arg(path).status().context("failed to run `chown`")?;
        let test = command_as(user, "sh").args(["-c", r#"cd "$0" && test -w ."#]).arg(path).output()?;
        if !chown.success() || !test.status.success() {
            bail!("{user} cannot write to {}", path.display());
        }
    }
    Ok(erase)
}
