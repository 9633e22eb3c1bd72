//! A small file system for a server's files, so that a test can fill it.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::command::{is_root, run};

/// Enough for an empty server and the load of a test.
const SIZE: &str = "512m";
const MOVE_DEADLINE: Duration = Duration::from_secs(120);
const CHUNK: usize = 1 << 20;

/// Mounts a file system, says so, and unmounts it when its input ends: also when the process that started it was killed.
const MOUNT: &str =
    r#"mount -t tmpfs -o "size=$1,mode=700" tmpfs "$0" && echo mounted && read -r _; umount --lazy "$0""#;

/// A file system in memory, in the place of a directory. It is unmounted when the value is dropped, or when this process ends.
#[derive(Debug)]
pub(crate) struct SmallDisk {
    path: PathBuf,
    mounted: Child,
}

impl SmallDisk {
    /// Moves a directory onto a small file system of its own. No process may use it. Only root may mount one.
    pub(crate) async fn move_to(path: &Path) -> Result<Self> {
        ensure!(is_root(), "only root can mount a small file system");
        let aside = path.with_extension("aside");
        fs::rename(path, &aside)?;
        fs::create_dir(path)?;
        let mut mount = Command::new("sh");
        mount.args(["-c", MOUNT]).arg(path).arg(SIZE).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut mounted = mount.spawn().context("failed to run `sh`")?;
        let mut word = [0; 7];
        let said = mounted.stdout.as_mut().context("`sh` has no output")?;
        std::io::Read::read_exact(said, &mut word).context("failed to mount a small file system")?;
        let disk = Self { path: path.to_owned(), mounted };
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

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.mounted.stdin.take());
        let _ = self.mounted.wait();
    }
}
