//! The ledger: the client's own record of every order that was acknowledged to it.
//!
//! The database cannot show what it has lost. The ledger can: an order's id is written to it when the 201 has arrived,
//! before anything counts the order.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail};
use load_tests::{Answer, Outcome};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// One line of the ledger.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Acknowledgement {
    /// The order.
    pub id: Uuid,
    /// When the answer had arrived, by the client's clock, in milliseconds since 1970.
    pub at: u64,
}

/// An append-only file of acknowledgements, open for writing.
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
    /// Opens the file, or creates it.
    pub fn open(path: &Path) -> Result<Self> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).with_context(|| format!("failed to create {}", dir.display()))?;
        }
        let file = File::options().create(true).append(true).open(path);
        let file = file.with_context(|| format!("failed to open {}", path.display()))?;
        let inner = Mutex::new(Inner { file, times: Vec::new(), failure: None });
        Ok(Self { path: path.to_owned(), inner })
    }

    /// Writes an acknowledgement, and counts it only once it is written. Many tasks call this at the same time.
    pub fn record(&self, id: Uuid, at: SystemTime) {
        let line = serde_json::to_string(&Acknowledgement { id, at: milliseconds(at) });
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        // One unbuffered write: the operating system has the line when this returns, even if this process is killed
        // next.
        match line.map_err(Into::into).and_then(|line| inner.file.write_all(format!("{line}\n").as_bytes())) {
            Ok(()) => inner.times.push(at),
            Err(failure) => inner.failure = Some(failure),
        }
    }

    /// Returns a callback for a load that records every accepted order.
    pub fn recorder(self: &Arc<Self>) -> impl Fn(Outcome) + Clone + Send + Sync + 'static {
        let ledger = self.clone();
        move |outcome| {
            if let Answer::Accepted(id) = outcome.answer {
                ledger.record(id, outcome.finished);
            }
        }
    }

    /// How many acknowledgements were recorded since the file was opened.
    pub fn recorded(&self) -> u64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).times.len() as u64
    }

    /// How many of these arrived between two moments.
    pub fn recorded_between(&self, from: SystemTime, to: SystemTime) -> u64 {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.times.iter().filter(|at| (from..to).contains(*at)).count() as u64
    }

    /// Returns the distinct ids of this run and of earlier ones on the same data.
    ///
    /// It fails if an acknowledgement could not be written, since a reconciliation would prove nothing then.
    pub fn acknowledged(&self) -> Result<Vec<Uuid>> {
        self.check()?;
        read(&self.path)
    }

    /// Returns the ids behind a position in the file, and moves the position behind them. The position goes back if the file was
    /// removed.
    ///
    /// It fails as [`acknowledged`](Self::acknowledged) does.
    pub fn acknowledged_since(&self, position: &mut u64) -> Result<Vec<Uuid>> {
        self.check()?;
        read_since(&self.path, position)
    }

    /// Erases the acknowledgements since a moment, which a restore has made void. Returns their orders.
    pub fn forget_since(&self, moment: SystemTime) -> Result<Vec<Uuid>> {
        self.check()?;
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let text = std::fs::read_to_string(&self.path)?;
        let (mut kept, mut forgotten) = (String::new(), vec![]);
        for line in text.split_inclusive('\n') {
            let found: Acknowledgement = serde_json::from_str(line)?;
            if found.at < milliseconds(moment) { kept.push_str(line) } else { forgotten.push(found.id) }
        }
        inner.file.set_len(0)?;
        inner.file.write_all(kept.as_bytes())?;
        inner.times.retain(|at| *at < moment);
        Ok(forgotten)
    }

    fn check(&self) -> Result<()> {
        match &self.inner.lock().unwrap_or_else(PoisonError::into_inner).failure {
            Some(failure) => {
                bail!("failed to write an acknowledgement to {}: {failure}", self.path.display())
            }
            None => Ok(()),
        }
    }
}

/// Reads the distinct order ids of a ledger. A file that does not exist has none.
pub fn read(path: &Path) -> Result<Vec<Uuid>> {
    let ids: HashSet<_> = read_since(path, &mut 0)?.into_iter().collect();
    Ok(ids.into_iter().collect())
}

fn read_since(path: &Path, position: &mut u64) -> Result<Vec<Uuid>> {
    let context = || format!("failed to read {}", path.display());
    let mut file = match File::open(path) {
        Ok(file) => file,
        // It does not exist yet, or `demo reset` has removed it.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            *position = 0;
            return Ok(vec![]);
        }
        Err(error) => return Err(error).with_context(context),
    };
    if file.metadata()?.len() < *position {
        *position = 0;
    }
    file.seek(SeekFrom::Start(*position))?;
    let mut text = String::new();
    file.read_to_string(&mut text).with_context(context)?;
    // Another process may be writing the last line, or was killed meanwhile: it has not counted that acknowledgement.
    let complete = text.rfind('\n').map_or("", |end| &text[..=end]);
    let acknowledgement = |line| serde_json::from_str(line).map(|found: Acknowledgement| found.id);
    let ids = complete.lines().map(acknowledgement).collect::<Result<_, _>>().with_context(context)?;
    *position += complete.len() as u64;
    Ok(ids)
}

fn milliseconds(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
