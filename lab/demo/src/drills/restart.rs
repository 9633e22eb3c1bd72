//! Killing a part of the system, and starting it again.

use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

use super::drill_run::DrillRun;
use crate::target::{Action, Target};

/// A part that was killed.
pub(crate) struct Killed {
    target: Target,
    pid_before: Option<u32>,
    is_gone: bool,
    at: Instant,
}

/// A part that was killed and started again.
pub(crate) struct Restarted {
    pid_before: Option<u32>,
    pid_after: Option<u32>,
    stayed_down: bool,
    /// From the kill until it worked again.
    pub(crate) after: Duration,
}

impl DrillRun<'_> {
    /// Kills a part.
    pub(crate) async fn kill(&self, target: Target) -> Result<Killed> {
        let pid_before = self.system.pid(&target).await?;
        self.system.act(Action::Kill, &target).await?;
        let at = Instant::now();
        let is_gone = self.system.pid(&target).await?.is_none();
        Ok(Killed { target, pid_before, is_gone, at })
    }

    /// Starts it again, and returns when it works.
    pub(crate) async fn restart(&self, killed: Killed) -> Result<Restarted> {
        let Killed { target, pid_before, is_gone, at } = killed;
        let stayed_down = is_gone && self.system.pid(&target).await?.is_none();
        self.system.act(Action::Start, &target).await?;
        let after = at.elapsed();
        let pid_after = self.system.pid(&target).await?;
        Ok(Restarted { pid_before, pid_after, stayed_down, after })
    }
}

impl Killed {
    /// The killed process in words.
    pub(crate) fn process(&self) -> String {
        process(self.pid_before)
    }
}

impl Restarted {
    /// The killed process in words.
    pub(crate) fn process_before(&self) -> String {
        process(self.pid_before)
    }

    /// The new process in words.
    pub(crate) fn process_after(&self) -> String {
        process(self.pid_after)
    }

    /// Whether a process was killed, and none replaced it before the restart.
    pub(crate) fn was_down(&self) -> bool {
        self.pid_before.is_some() && self.stayed_down
    }

    /// Whether it runs again, as another process.
    pub(crate) fn runs_again(&self) -> bool {
        self.pid_after.is_some() && self.pid_after != self.pid_before
    }
}

fn process(pid: Option<u32>) -> String {
    pid.map_or("no process".to_owned(), |pid| format!("process {pid}"))
}
