//! A simulated power failure: takes back what a server has written and not synced.
//!
//! SIGKILL alone loses nothing that the kernel has, so a server that never calls `fsync` survives it. `power_loss.c`, which the
//! server's processes load, keeps what each unsynced write has replaced; this puts it back once the processes are killed. All
//! unsynced writes are lost. A real failure may keep some of them, and may tear one.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, Result};

use crate::command::run;

/// The program of the library, which the C compiler builds that Rust links with.
const SOURCE: &str = include_str!("power_loss.c");
const COMPILE_DEADLINE: Duration = Duration::from_secs(60);

/// What a server has written and not synced, while its processes run with the environment of this.
#[derive(Debug)]
pub struct Unsynced {
    data: PathBuf,
    journals: PathBuf,
    library: PathBuf,
}

/// What a power failure has taken back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenBack {
    pub files: usize,
    pub writes: usize,
    pub bytes: u64,
}

/// One change of a file: see `power_loss.c`.
struct Record<'a> {
    offset: u64,
    replaced: &'a [u8],
    size: u64,
    written: u64,
}

impl Unsynced {
    /// Compiles the library into `dir`, for a server whose files are in `data`.
    pub(crate) async fn new(dir: &Path, data: &Path) -> Result<Self> {
        let source = dir.join("power_loss.c");
        fs::write(&source, SOURCE).with_context(|| format!("failed to write {}", source.display()))?;
        let (library, journals) = (dir.join("power_loss.so"), dir.join("unsynced"));
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"]).arg(&library).arg(&source);
        run(compile, COMPILE_DEADLINE).await.context("failed to compile power_loss.c")?;
        DirBuilder::new()
            .mode(0o700)
            .create(&journals)
            .with_context(|| format!("failed to create {}", journals.display()))?;
        // The server's user appends to the journals.
        let owner = fs::metadata(data)?;
        chown(&journals, Some(owner.uid()), Some(owner.gid()))?;
        // As the kernel names it.
        Ok(Self { data: data.canonicalize()?, journals, library })
    }

    /// The variables of the server's processes.
    pub(crate) fn environment(&self) -> [(&str, &Path); 3] {
        [
            ("LD_PRELOAD", &self.library),
            ("POWER_LOSS_DATA", &self.data),
            ("POWER_LOSS_JOURNALS", &self.journals),
        ]
    }

    /// Counts everything that was written so far as synced, as the kernel writes it after some time. The server must be paused.
    pub fn forget(&self) -> Result<()> {
        for entry in fs::read_dir(&self.journals)? {
            // A process that was paused while it appends goes on in the file without a name.
            fs::remove_file(entry?.path())?;
        }
        Ok(())
    }

    /// Takes back what was written and not synced. The server must have been killed.
    pub fn take_back(&self) -> Result<TakenBack> {
        let (mut files, mut taken) = (HashMap::new(), TakenBack::default());
        find_files(&self.data, &mut files)?;
        for entry in fs::read_dir(&self.journals)? {
            let entry = entry?;
            let journal = fs::read(entry.path())?;
            let records = parse(&journal).with_context(|| format!("failed to read {:?}", entry.path()))?;
            // Of a file that was unlinked nothing is left to take back.
            if let Some(path) = files.get(&*entry.file_name().to_string_lossy())
                && !records.is_empty()
            {
                let file = File::options().write(true).open(path);
                let file = file.with_context(|| format!("failed to open {}", path.display()))?;
                for Record { offset, replaced, size, written } in records.iter().rev() {
                    file.write_all_at(replaced, *offset)?;
                    file.set_len(*size)?;
                    taken.writes += 1;
                    taken.bytes += written;
                }
                taken.files += 1;
            }
            fs::remove_file(entry.path())?;
        }
        Ok(taken)
    }
}

/// Finds the regular files below a directory, by the name of their journals. Follows no links.
fn find_files(dir: &Path, files: &mut HashMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("failed to list {}", dir.display()))? {
        let entry = entry?;
        let file = entry.metadata()?;
        if file.is_dir() {
            find_files(&entry.path(), files)?;
        } else if file.is_file() {
            let born = file.created()?.duration_since(UNIX_EPOCH)?;
            let name = format!("{}-{}-{}", file.ino(), born.as_secs(), born.subsec_nanos());
            files.insert(name, entry.path());
        }
    }
    Ok(())
}

/// The records of a journal, the oldest first.
fn parse(journal: &[u8]) -> Result<Vec<Record<'_>>> {
    let mut records = vec![];
    if journal.is_empty() {
        return Ok(records);
    }
    let (end, _) = number(journal)?;
    let mut rest = journal.get(8..usize::try_from(end)?).context("it ends too early")?;
    while !rest.is_empty() {
        let (offset, after) = number(rest)?;
        let (replaced, after) = number(after)?;
        let (size, after) = number(after)?;
        let (written, after) = number(after)?;
        let (replaced, after) =
            after.split_at_checked(usize::try_from(replaced)?).context("a record is cut off")?;
        records.push(Record { offset, replaced, size, written });
        rest = after;
    }
    Ok(records)
}

fn number(bytes: &[u8]) -> Result<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk().context("a number is cut off")?;
    Ok((u64::from_ne_bytes(*number), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private_dir::PrivateDir;

    #[tokio::test]
    async fn unsynced_bytes_of_any_process_are_taken_back_and_synced_ones_stay() -> Result<()> {
        let dir = PrivateDir::new("power-loss", None)?;
        let data = dir.directory_of(None, "data")?;
        for name in ["written", "synced-by-another", "cut", "emptied", "renamed"] {
            fs::write(data.join(name), "old content")?;
        }
        let unsynced = Unsynced::new(dir.path(), &data).await?;
        // Each command is a process.
        let shell = async |script: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-ec", script]).current_dir(&data).envs(unsynced.environment());
            run(shell, COMPILE_DEADLINE).await
        };
        shell("put() { printf %s \"$1\" | dd of=\"$2\" bs=1 seek=\"$3\" conv=\"notrunc$4\" status=none; }
               put SYNC written 0 ,fsync; put LOST written 2; put LOST written 9
               put SYNC synced-by-another 4; put MORE synced-by-another 11; sync -d synced-by-another; put LOST synced-by-another 0
               truncate -s 3 cut; put LOST cut 6
               put LOST emptied 0; dd if=/dev/null of=emptied status=none; put LOST emptied 0
               put LOST renamed 0; mv renamed new-name
               put LOST never-synced 0; put LOST unlinked 0; rm unlinked; put SYNC durable 0 ,fdatasync")
        .await?;
        let taken = unsynced.take_back()?;
        let content = |name: &str| Ok::<_, anyhow::Error>(fs::read_to_string(data.join(name))?);
        assert_eq!(content("written")?, "SYNCcontent");
        assert_eq!(content("synced-by-another")?, "old SYNCentMORE");
        for name in ["cut", "emptied", "new-name"] {
            assert_eq!(content(name)?, "old content", "{name}");
        }
        assert_eq!((content("never-synced")?, content("durable")?), (String::new(), "SYNC".to_owned()));
        assert_eq!((taken.files, taken.bytes), (6, 8 * 4), "{taken:?}");
        assert_eq!(unsynced.take_back()?, TakenBack::default());

        shell("printf LOST | dd of=written conv=notrunc status=none").await?;
        unsynced.forget()?;
        assert_eq!(
            (unsynced.take_back()?, content("written")?),
            (TakenBack::default(), "LOSTcontent".to_owned())
        );
        Ok(())
    }
}
