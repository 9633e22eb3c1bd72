//! libfaketime: a wrong clock for one process.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

/// Finds the library that `LD_PRELOAD` loads into a process whose clock is to be wrong.
pub fn find_faketime() -> Result<PathBuf> {
    let architectures = std::fs::read_dir("/usr/lib").context("failed to list /usr/lib")?;
    let library = |folder: PathBuf| folder.join("faketime/libfaketime.so.1");
    let mut candidates = architectures.filter_map(|entry| Some(library(entry.ok()?.path())));
    candidates
        .find(|path| path.exists())
        .context("libfaketime is not installed: `apt-get install -y libfaketime`")
}
