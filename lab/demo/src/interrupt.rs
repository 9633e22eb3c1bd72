//! Ctrl-C.

use anyhow::Result;
use tokio::signal::unix::{SignalKind, signal};

use crate::Verdict;

/// Returns on Ctrl-C (SIGINT), on SIGTERM, or when the terminal is closed (SIGHUP).
pub(crate) async fn interrupted() -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}

/// Runs a command that breaks nothing until it ends or is interrupted. Dropping it stops what it started.
pub(crate) async fn or_interrupted(work: impl Future<Output = Result<Verdict>>) -> Result<Verdict> {
    tokio::select! {
        done = work => done,
        stop = interrupted() => stop.map(|()| Verdict::Interrupted),
    }
}
