//! A server as a process of the machine's own binaries.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::command::{copy_surroundings, output};
use crate::guard::GuardedProcess;
use crate::private_dir::PrivateDir;
use crate::restartable_process::RestartableProcess;

/// PostgreSQL writes a checkpoint when it stops, RabbitMQ closes its queues.
const STOP_DEADLINE: Duration = Duration::from_secs(30);
/// A tool of RabbitMQ starts an Erlang VM; that takes seconds on a busy machine.
const TOOL_DEADLINE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct LocalServer {
    pub(crate) process: RestartableProcess,
    stop_signal: &'static str,
    /// Another process that the server needs (RabbitMQ's name server).
    _companion: Option<GuardedProcess>,
    /// The last field, because fields are dropped in order: the directory is erased after the processes were killed.
    _dir: PrivateDir,
}

impl LocalServer {
    pub(crate) fn new(command: Command, stop_signal: &'static str, dir: PrivateDir) -> Self {
        let process = RestartableProcess::new(command, dir.path().join("server.log"));
        Self { process, stop_signal, _companion: None, _dir: dir }
    }

    pub(crate) fn with_companion(self, companion: GuardedProcess) -> Self {
        Self { _companion: Some(companion), ..self }
    }

    /// Runs a tool from the directory of the server's program, in the server's environment.
    pub(crate) async fn tool(&self, name: &str, args: &[&str]) -> Result<()> {
        let server = self.process.command();
        let program = Path::new(server.get_program()).with_file_name(name);
        let mut tool = Command::new(&program);
        copy_surroundings(server, &mut tool);
        tool.args(args);
        let output = output(&mut tool.into(), TOOL_DEADLINE).await?;
        if !output.status.success() {
            bail!("`{}` failed: {}", program.display(), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    /// Asks the server to shut down in order, and waits until it has. Resumes it first if it is paused.
    pub(crate) async fn stop(&self) -> Result<()> {
        self.process.resume()?;
        self.process.stop(self.stop_signal, STOP_DEADLINE).await.map(drop)
    }
}
