//! One service as a child process, for a test of what its clients see.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::command::{copy_surroundings, remove_settings};
use crate::ports::free_port;
use crate::private_dir::PrivateDir;
use crate::restartable_process::RestartableProcess;

/// How long a service may take to start, on a busy machine.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// A service at a free port. It is killed when the value is dropped.
#[derive(Debug)]
pub struct TestService {
    url: String,
    process: RestartableProcess,
    _logs: PrivateDir,
}

impl TestService {
    /// Starts a program with these settings, and none of the surrounding shell. Each begins with `prefix`, for example
    /// `ORDERS_`. Does not wait until it is ready.
    pub fn start(mut program: Command, prefix: &str, settings: &[(&str, &str)]) -> Result<Self> {
        let logs = PrivateDir::new("service", None)?;
        // With port 0 the test would not learn which port the process got.
        let address = format!("127.0.0.1:{}", free_port()?);
        remove_settings(&mut program, prefix);
        program.env(format!("{prefix}HTTP_ADDRESS"), &address).env(format!("{prefix}LOG"), "warn");
        program.envs(settings.iter().copied());
        let process = RestartableProcess::new(program, logs.path().join("service.log"));
        process.start()?;
        Ok(Self { url: format!("http://{address}"), process, _logs: logs })
    }

    /// Where it answers, without a trailing slash.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Everything that it has logged so far.
    pub fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.process.log())?)
    }

    /// Its process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Waits until `/readyz` answers 200.
    pub async fn ready(&self) -> Result<()> {
        self.process.wait_ready(&self.url, READY_DEADLINE).await
    }

    /// Sends SIGKILL, and waits until it has ended.
    pub async fn kill(&self) -> Result<()> {
        self.process.kill().await
    }

    /// Kills it and starts it again, with the same settings.
    pub async fn restart(&self) -> Result<()> {
        self.kill().await?;
        self.process.start()?;
        self.ready().await
    }

    /// Its command, with its settings.
    pub fn command(&self) -> Command {
        let original = self.process.command();
        let mut command = Command::new(original.get_program());
        command.args(original.get_args());
        copy_surroundings(original, &mut command);
        command
    }
}
