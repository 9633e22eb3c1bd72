//! The file through which a lab program crashes once.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use testbed::eventually;
use uuid::Uuid;

use super::CONDITION_DEADLINE;

/// How long after the work that leads to a crash point it may be reached, before the work is done once more.
const REACH_DEADLINE: Duration = Duration::from_secs(10);
/// The same after work that has failed. It may have failed because a process has just ended at the crash point.
const FAILED_DEADLINE: Duration = Duration::from_millis(500);

/// The file that the process which reaches an armed crash point creates (`CRASH_ONCE`). Removed when dropped.
#[derive(Debug)]
pub struct CrashFile(PathBuf);

impl CrashFile {
    /// Chooses a path at which no file exists: the crash point is armed.
    #[expect(clippy::new_without_default, reason = "each one is another file")]
    pub fn new() -> Self {
        Self(std::env::temp_dir().join(format!("crash-{}", Uuid::new_v4())))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Waits until a process has reached the crash point, and returns its id.
    pub async fn process(&self) -> Result<u32> {
        self.process_within(CONDITION_DEADLINE).await
    }

    async fn process_within(&self, deadline: Duration) -> Result<u32> {
        eventually("a process to reach the crash point", deadline, async || {
            Ok(std::fs::read_to_string(&self.0).ok().and_then(|pid| pid.parse().ok()))
        })
        .await
    }

    /// Does the work that leads to the crash point until a process has reached it: once more after a failure, or when no
    /// process has got there. The error says why the work has failed last.
    pub async fn provoke(&self, mut work: impl AsyncFnMut() -> Result<()>) -> Result<u32> {
        eventually("a process to reach the crash point", CONDITION_DEADLINE, async || {
            let worked = work().await;
            let deadline = if worked.is_ok() { REACH_DEADLINE } else { FAILED_DEADLINE };
            match (self.process_within(deadline).await, worked) {
                (Ok(pid), _) => Ok(Some(pid)),
                (Err(_), Err(refused)) => Err(refused),
                (Err(_), Ok(())) => bail!("no process has reached it after {deadline:?}"),
            }
        })
        .await
    }

    /// The same, without waiting for the end of the work. The process that accepts an order wakes its own relay first, and may
    /// freeze before it has answered; the order is committed by then.
    pub async fn process_by(&self, work: impl AsyncFnMut() -> Result<()>) -> Result<u32> {
        tokio::select! {
            provoked = self.provoke(work) => provoked,
            // It waits longer than the other, whose error says more.
            reached = self.process_within(2 * CONDITION_DEADLINE) => reached,
        }
    }

    /// Waits until a process has frozen at the crash point, and returns its id. The process writes the file before it
    /// freezes: a SIGCONT between the two would have no effect, and the process would stay frozen.
    pub async fn frozen(&self) -> Result<u32> {
        let pid = self.process().await?;
        await_stop(pid).await?;
        Ok(pid)
    }

    /// The same, by [`process_by`](Self::process_by).
    pub async fn frozen_by(&self, work: impl AsyncFnMut() -> Result<()>) -> Result<u32> {
        let pid = self.process_by(work).await?;
        await_stop(pid).await?;
        Ok(pid)
    }

    /// Until it is armed again, no process crashes.
    pub fn disarm(&self) -> Result<()> {
        std::fs::write(&self.0, "disarmed").context("failed to disarm the crash point")
    }

    /// The next process that reaches the point crashes.
    pub fn arm(&self) -> Result<()> {
        std::fs::remove_file(&self.0).context("failed to arm the crash point")
    }
}

impl Drop for CrashFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Whether a process is stopped by a signal, from `/proc`.
///
/// # Errors
/// When there is no such process.
pub(crate) fn is_stopped(pid: u32) -> Result<bool> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("failed to read the state of process {pid}"))?;
    Ok(status.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')))
}

/// Waits until a process that was sent SIGSTOP has stopped: on a busy machine that takes a moment, in which it goes on.
pub async fn await_stop(pid: u32) -> Result<()> {
    eventually(&format!("process {pid} to stop"), CONDITION_DEADLINE, async || {
        Ok(is_stopped(pid)?.then_some(()))
    })
    .await
}

/// Continues a process that has frozen itself.
pub fn resume_process(pid: u32) -> Result<()> {
    let done =
        Command::new("kill").args(["-CONT", &pid.to_string()]).status().context("failed to run kill")?;
    ensure!(done.success(), "failed to continue process {pid}");
    Ok(())
}
