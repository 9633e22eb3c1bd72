//! A command that can be started, killed, paused and started again.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};

use crate::command::copy_surroundings;
use crate::eventually::eventually_send;
use crate::guard::{AtExit, GuardedProcess, log_tail, signal_all, with_descendants};

/// The kernel needs a moment after SIGKILL to remove a large process.
const KILL_DEADLINE: Duration = Duration::from_secs(60);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// A command and its current process, if it runs. Each start appends to the same log.
#[derive(Debug)]
pub struct RestartableProcess {
    command: Command,
    log: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    process: Option<GuardedProcess>,
    /// Variables that replace those of the command, from the next start on.
    settings: Vec<(String, String)>,
    /// The paused processes. If this process ends, they must be resumed to notice it, and exit.
    paused: Option<(Vec<u32>, AtExit)>,
}

impl RestartableProcess {
    pub fn new(command: Command, log: PathBuf) -> Self {
        Self { command, log, state: Mutex::default() }
    }

    pub(crate) fn command(&self) -> &Command {
        &self.command
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last lines of the log, for error messages.
    pub fn log_tail(&self) -> String {
        log_tail(&self.log)
    }

    /// Sets a variable for the next start.
    pub fn set(&self, variable: &str, value: &str) {
        self.state().settings.push((variable.to_owned(), value.to_owned()));
    }

    pub fn start(&self) -> Result<()> {
        self.start_program(Path::new(self.command.get_program()))
    }

    /// Starts a program with the command's arguments and environment. The next start is the command's again.
    pub(crate) fn start_program(&self, program: &Path) -> Result<()> {
        let mut state = self.state();
        if let Some(process) = &mut state.process
            && process.exit_status()?.is_none()
        {
            bail!("it is already running, as process {}", process.pid());
        }
        let mut command = Command::new(program);
        command.args(self.command.get_args());
        copy_surroundings(&self.command, &mut command);
        command.envs(state.settings.iter().map(|(variable, value)| (variable, value)));
        state.process = Some(GuardedProcess::spawn(&command, &self.log)?);
        Ok(())
    }

    /// The process id, or `None` while the command does not run.
    pub fn pid(&self) -> Option<u32> {
        let mut state = self.state();
        let process = state.process.as_mut()?;
        process.exit_status().ok()?.is_none().then(|| process.pid())
    }

    /// Fails with the end of the log if the process has ended: waiting for it any longer is useless.
    pub(crate) fn check_running(&self) -> Result<()> {
        let mut state = self.state();
        let process = state.process.as_mut().context("it is not running")?;
        match process.exit_status()? {
            None => Ok(()),
            Some(status) => bail!("it ended ({status}); {}", process.log_tail()),
        }
    }

    /// Waits until `/readyz` at this URL answers 200. Fails at once if the process has ended. The error has the end of the log.
    pub(crate) async fn wait_ready(&self, url: &str, deadline: Duration) -> Result<()> {
        let url = format!("{url}/readyz");
        let ready = eventually_send("/readyz to answer 200", deadline, || async {
            if let Err(ended) = self.check_running() {
                return Ok(Some(Err(ended)));
            }
            let response = reqwest::Client::new().get(&url).timeout(REQUEST_TIMEOUT).send().await?;
            match response.status().as_u16() {
                200 => Ok(Some(Ok(()))),
                other => bail!("/readyz answers {other}: {}", response.text().await?.trim()),
            }
        });
        ready.await.map_err(|late| anyhow!("{late:#}; {}", self.log_tail()))?
    }

    /// Sends SIGKILL to the process and all its descendants, and waits until all of them have ended.
    pub async fn kill(&self) -> Result<()> {
        self.take()?.kill(KILL_DEADLINE).await?;
        self.state().paused = None;
        Ok(())
    }

    /// Sends SIGSTOP to the process and all its descendants.
    pub fn pause(&self) -> Result<()> {
        let pid = self.pid().context("it is not running")?;
        let pids = with_descendants(pid)?;
        let resume = AtExit::resume(&pids)?;
        signal_all("STOP", &pids)?;
        self.state().paused = Some((pids, resume));
        Ok(())
    }

    /// Sends SIGCONT to the processes that [`RestartableProcess::pause`] has stopped.
    pub fn resume(&self) -> Result<()> {
        match self.state().paused.take() {
            Some((pids, _resume)) => signal_all("CONT", &pids),
            None => Ok(()),
        }
    }

    /// Sends a signal that asks the process to exit, and waits until it has. Does not resume a paused process.
    pub async fn stop(&self, signal: &str, deadline: Duration) -> Result<ExitStatus> {
        let mut process = self.take()?;
        process.signal_one(signal)?;
        process.wait(deadline).await
    }

    /// Hands the process over to the caller. From now on the command counts as not running.
    pub(crate) fn take(&self) -> Result<GuardedProcess> {
        self.state().process.take().context("it is not running")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
