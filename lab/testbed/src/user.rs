//! The user that programs run as.

use std::ffi::OsStr;
use std::process::Command;

/// A command that runs `program` as another user, without that user's shell or login session.
pub(crate) fn command_as(user: &str, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", user, "--regid", user, "--clear-groups", "--"]).arg(program);
    command
}

/// Whether this process runs as root. It asks the program `id`: one call does not justify another dependency.
pub(crate) fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}
