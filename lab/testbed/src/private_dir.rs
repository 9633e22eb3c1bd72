//! A directory for a server's data that is erased at the end.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::binaries::target_dir;
use crate::command::command_as;
use crate::guard::AtExit;

/// A directory that no other user can change or list. It is erased when the value is dropped or when this process ends.
#[derive(Debug)]
pub(crate) struct PrivateDir {
    path: PathBuf,
    _erase: AtExit,
}

impl PrivateDir {
    /// Creates a directory for a server that runs as `user`, or as the current user if that is `None`. The directory stays
    /// the current user's, and `user` can only pass through it: root would follow a link that `user` puts there.
    ///
    /// The directory is in cargo's target directory. If `user` cannot reach that (a checkout under `/root` is closed to
    /// other users), it is in the system's directory for temporary files: directly, because there another user may own
    /// any directory in between, and replace what is in it.
    pub(crate) fn new(name: &str, user: Option<&str>) -> Result<Self> {
        let name = format!("testbed-{name}-{}-{:016x}", std::process::id(), fastrand::u64(..));
        let mut reasons = Vec::new();
        let target = target_dir().map(|target| target.join("testbed"));
        if let Some(target) = &target {
            fs::create_dir_all(target).with_context(|| format!("failed to create {}", target.display()))?;
        }
        for parent in target.into_iter().chain([std::env::temp_dir()]) {
            let path = parent.join(&name);
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

    /// Creates a directory in it that belongs to `user`, and that no one else can enter.
    pub(crate) fn directory_of(&self, user: Option<&str>, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        give_to(user, &path)?;
        Ok(path)
    }

    /// Creates a file in it that only `user` can read.
    pub(crate) fn secret_of(&self, user: Option<&str>, name: &str, secret: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(secret.as_bytes())?;
        give_to(user, &path)?;
        Ok(path)
    }
}

/// Changes the owner: of a link itself, never of what it points to.
fn give_to(user: Option<&str>, path: &Path) -> Result<()> {
    if let Some(user) = user {
        let chown = Command::new("chown").args(["-h", user]).arg(path).status();
        ensure!(
            chown.context("failed to run `chown`")?.success(),
            "failed to give {} to {user}",
            path.display()
        );
    }
    Ok(())
}

fn create(path: &Path, user: Option<&str>) -> Result<AtExit> {
    let mode = if user.is_some() { 0o711 } else { 0o700 };
    // Fails if there is something of this name already, even a link.
    let created = DirBuilder::new().mode(mode).create(path);
    created.with_context(|| format!("failed to create {}", path.display()))?;
    let erase = AtExit::erase(path)?;
    if let Some(user) = user {
        let enter = command_as(user, "sh").args(["-c", r#"cd "$0""#]).arg(path).output()?;
        ensure!(enter.status.success(), "{user} cannot enter {}", path.display());
    }
    Ok(erase)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::command::is_root;

    #[test]
    fn a_link_that_another_user_has_planted_is_refused_and_not_followed() -> Result<()> {
        let parent = PrivateDir::new("planted", None)?;
        let (victim, planted) = (parent.path().join("victim"), parent.path().join("planted"));
        fs::create_dir(&victim)?;
        symlink(&victim, &planted)?;
        assert!(create(&planted, None).is_err());
        assert!(victim.exists());
        Ok(())
    }

    #[test]
    fn the_servers_user_can_write_below_its_directory_only() -> Result<()> {
        // Another user's rights can be tried by root only; CI is root.
        if !is_root() {
            return Ok(());
        }
        let user = Some("daemon");
        let dir = PrivateDir::new("rights", user)?;
        let own = dir.directory_of(user, "data")?;
        let secret = dir.secret_of(user, "password", "hunter2")?;
        let may = |script: &str, path: &Path| -> Result<bool> {
            Ok(command_as("daemon", "sh").args(["-c", script]).arg(path).output()?.status.success())
        };
        assert!(may(r#"touch "$0"/file"#, &own)?);
        assert!(may(r#"test "$(cat "$0")" = hunter2"#, &secret)?);
        // Root appends to this log.
        assert!(!may(r#"ln -s /dev/null "$0"/server.log"#, dir.path())?);
        assert!(!may(r#"ls "$0""#, dir.path())?);
        Ok(())
    }
}
