//! Helpers for running programs.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use tokio::process::Command;
use tokio::time::timeout;

/// Runs a program to its end and returns its output, also if it exits with an error. Kills it at the deadline.
pub(crate) async fn output(command: &mut Command, deadline: Duration) -> Result<Output> {
    let run = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(deadline, run).await;
    let output = output
        .with_context(|| format!("`{}` took more than {} s", shown(command.as_std()), deadline.as_secs()))?;
    output.map_err(|error| {
        let program = command.as_std().get_program().display();
        match error.kind() {
            ErrorKind::NotFound => anyhow!("failed to run `{program}`: it is not installed"),
            _ => anyhow!("failed to run `{program}`: {error}"),
        }
    })
}

/// Runs a program to its end. The error has what it wrote to its error output.
pub(crate) async fn run(command: std::process::Command, deadline: Duration) -> Result<()> {
    let mut command = Command::from(command);
    let output = output(&mut command, deadline).await?;
    if !output.status.success() {
        bail!("`{}` failed: {}", shown(command.as_std()), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// The program and its arguments, for error messages.
pub(crate) fn shown(command: &std::process::Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Gives `to` the working directory and the changes to the environment that `from` has.
pub(crate) fn copy_surroundings(from: &std::process::Command, to: &mut std::process::Command) {
    for (name, value) in from.get_envs() {
        match value {
            Some(value) => to.env(name, value),
            None => to.env_remove(name),
        };
    }
    if let Some(dir) = from.get_current_dir() {
        to.current_dir(dir);
    }
}

/// Removes the settings of the surrounding shell whose names begin with `prefix`: they are not meant for what a test starts.
pub fn remove_settings(command: &mut std::process::Command, prefix: &str) {
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with(prefix) {
            command.env_remove(variable);
        }
    }
    // A failure shows the end of the log. A backtrace there would leave no room for the chain of causes.
    command.env("RUST_BACKTRACE", "0");
}

/// A command that runs `program` as another user, without that user's shell or login session.
pub(crate) fn command_as(user: &str, program: impl AsRef<OsStr>) -> std::process::Command {
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid", user, "--regid", user, "--clear-groups", "--"]).arg(program);
    command
}

/// Whether this process runs as root. It asks the program `id`: one call does not justify another dependency.
pub(crate) fn is_root() -> bool {
    let id = std::process::Command::new("id").arg("-u").output();
    id.is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}
