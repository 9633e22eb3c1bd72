//! A small file system for a server's files, so that a test can fill it.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::command::{is_root, run};
use crate::guard::AtExit;

/// Enough for an empty server and the load of a test.
const SIZE: &str = "512m";
const MOVE_DEADLINE: Duration = Duration::from_secs(120);
const CHUNK: usize = 1 << 20;

/// A file system in memory, in the place of a directory. It is unmounted when the value is dropped, or when this process ends.
#[derive(Debug)]
pub(crate) struct SmallDisk {
    path: PathBuf,
    _unmount: AtExit,
}

impl SmallDisk {
    /// Moves a directory onto a small file system. No process may use it. Only root may mount one, and in a container only with
    /// the capability `SYS_ADMIN`.
    pub(crate) async fn move_to(path: &Path) -> Result<Self> {
        ensure!(is_root(), "only root can mount a small file system");
        let aside = path.with_extension("aside");
        fs::rename(path, &aside)?;
        fs::create_dir(path)?;
        // The directory around it is erased at the same moment, which fails for as long as this is mounted.
        let script = r#"umount --lazy "$1"; rm -rf -- "$2""#;
        let around = path.parent().context("it is the root directory")?;
        let disk =
            Self { path: path.to_owned(), _unmount: AtExit::run(script, &[path.as_ref(), around.as_ref()])? };
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o"]).arg(format!("size={SIZE},mode=700")).arg("tmpfs").arg(path);
        run(mount, MOVE_DEADLINE).await?;
        // With its owner: servers refuse directories of others.
        let mut copy = Command::new("cp");
        copy.arg("--archive").arg(aside.join(".")).arg(path);
        run(copy, MOVE_DEADLINE).await?;
        fs::remove_dir_all(aside)?;
        Ok(disk)
    }

    /// Writes a file until so many bytes are free. Returns its size.
    pub(crate) fn fill(&self, free: usize) -> Result<u64> {
        let mut file = File::create(self.filler())?;
        let chunk = vec![0; CHUNK];
        // `write`, not `write_all`: the last bytes that fit are written too.
        while file.write(&chunk).is_ok_and(|written| written > 0) {}
        let size = file.metadata()?.len().saturating_sub(free as u64);
        file.set_len(size)?;
        Ok(size)
    }

    /// Removes that file.
    pub(crate) fn free(&self) -> Result<()> {
        fs::remove_file(self.filler()).context("failed to free the disk")
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }
}
