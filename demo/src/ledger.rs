//! What clients were promised: an append-only log of acknowledgements, on the client's side of the wire.
//!
//! The database cannot testify about what it lost. This file can: an order id goes in when its 201 has arrived, and
//! before anybody counts it.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// One acknowledgement.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Acknowledgement {
    /// The order.
    pub id: Uuid,
    /// When the answer had arrived, by the client's clock, in milliseconds since 1970.
    pub at: u64,
}

/// The log, open for writing.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: File,
    times: Vec<SystemTime>,
    failure: Option<std::io::Error>,
}

impl Ledger {
    /// Opens or begins the log.
    pub fn open(path: &Path) -> Result<Self> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        let file = File::options().create(true).append(true).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        let inner = Mutex::new(Inner { file, times: Vec::new(), failure: None });
        Ok(Self { path: path.to_owned(), inner })
    }

    /// Notes an acknowledgement, and counts it only once it is written. Called from many tasks.
    pub fn note(&self, id: Uuid, at: SystemTime) {
        let line = serde_json::to_string(&Acknowledgement { id, at: milliseconds(at) });
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        // One write, unbuffered: the line is with the operating system when this returns, whatever becomes of us.
        match line.map_err(Into::into).and_then(|line| inner.file.write_all(format!("{line}\n").as_bytes())) {
            Ok(()) => inner.times.push(at),
            Err(failure) => inner.failure = Some(failure),
        }
    }

    /// How many were noted since it was opened.
    pub fn noted(&self) -> u64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).times.len() as u64
    }

    /// How many of these between two moments.
    pub fn noted_between(&self, from: SystemTime, to: SystemTime) -> u64 {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.times.iter().filter(|at| (from..to).contains(*at)).count() as u64
    }

    /// Every order id that the log holds, of this run and of earlier ones on the same data; an error if anything
    /// could not be written, because then the sum would prove nothing.
    pub fn acknowledged(&self) -> Result<Vec<Uuid>> {
        if let Some(failure) = &self.inner.lock().unwrap_or_else(PoisonError::into_inner).failure {
            anyhow::bail!("an acknowledgement could not be written to {}: {failure}", self.path.display());
        }
        read(&self.path)
    }
}

/// The distinct order ids in a log; none if there is no such file.
pub fn read(path: &Path) -> Result<Vec<Uuid>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let mut ids = HashSet::new();
    let mut lines = BufReader::new(file).lines().enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        match serde_json::from_str::<Acknowledgement>(&line?) {
            Ok(acknowledgement) => ids.insert(acknowledgement.id),
            // The writer was killed in the middle of its last line: that one was never counted.
            Err(_) if lines.peek().is_none() => break,
            Err(error) => {
                return Err(error).with_context(|| format!("{}, line {}", path.display(), number + 1));
            }
        };
    }
    Ok(ids.into_iter().collect())
}

fn milliseconds(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
