//! Ends child processes and erases their data when this process ends, even after `kill -9`.
//!
//! A destructor does not run after `kill -9`, and child processes are not told that their parent has ended. A pipe
//! tells them: the kernel closes this process's end of it, however the process ends. A small shell runs beside each
//! server and waits until its pipe is closed; then it kills the server or erases the data. This needs no unsafe code,
//! no watchdog thread and no signal handler, which `kill -9` would skip.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::{fs::OpenOptionsExt as _, process::CommandExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::command::copy_surroundings;
use crate::eventually::eventually_send;

/// Starts a watcher, then becomes the command.
///
/// The watcher is started first and is detached, so that it is not a child of the command. The shell becomes the
/// command by `exec`, so that its process id is the command's. Both are in one process group that no other process
/// joins: to kill "group 0" cannot hit another process, not even one that has got a reused process id.
const GUARD_SCRIPT: &str = r#"
exec 3<&0 </dev/null
( ( trap '' HUP INT TERM; read -r _ <&3; kill -s KILL 0 ) & )
exec "$@" 3<&-
"#;

/// A child process that is killed when this process ends or when the value is dropped.
///
/// It has a process group of its own: a terminal sends Ctrl-C to its whole foreground group, and this process has to
/// receive it alone, to stop its children in order.
#[derive(Debug)]
pub struct GuardedProcess {
    child: Child,
    /// Closing this pipe ends the process group.
    _pipe: ChildStdin,
    log: PathBuf,
}

impl GuardedProcess {
    /// Starts `command` and appends its output to `log`.
    pub fn spawn(command: &Command, log: &Path) -> Result<Self> {
        // Logs quote statements and requests.
        let out = File::options().create(true).append(true).mode(0o600).open(log);
        let out = out.with_context(|| format!("failed to open {}", log.display()))?;
        let mut shell = Command::new("sh");
        shell.args(["-c", GUARD_SCRIPT, "guard"]).arg(command.get_program()).args(command.get_args());
        copy_surroundings(command, &mut shell);
        shell.process_group(0).stdin(Stdio::piped()).stdout(out.try_clone()?).stderr(out);
        let child = shell.spawn();
        let mut child =
            child.with_context(|| format!("failed to start {}", command.get_program().display()))?;
        let pipe = child.stdin.take().context("the child has no standard input")?;
        Ok(Self { child, _pipe: pipe, log: log.to_owned() })
    }

    /// The process id of the command itself.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The exit status, or `None` while the process runs.
    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Sends a signal (`"TERM"`, `"STOP"`, …) to the process alone, as `kill PID` would.
    pub(crate) fn signal_one(&self, signal: &str) -> Result<()> {
        signal_all(signal, &[self.pid()])
    }

    /// Sends SIGKILL to the process and all its descendants, and waits until all of them have ended: PostgreSQL does not
    /// start again while a session of its last run still uses the shared memory.
    pub async fn kill(&mut self, deadline: Duration) -> Result<()> {
        // Stopped first, so that it starts no further child after its descendants are listed.
        self.signal_one("STOP")?;
        let pids = with_descendants(self.pid())?;
        signal_all("KILL", &pids)?;
        self.wait(deadline).await?;
        eventually_send("all descendants to end", deadline, || {
            std::future::ready(any_runs(&pids).map(|runs| (!runs).then_some(())))
        })
        .await
    }

    /// Waits until the process has ended, and returns its exit status.
    pub async fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let what = format!("process {} to end", self.pid());
        eventually_send(&what, deadline, || std::future::ready(self.exit_status())).await
    }

    /// The last lines of the log, for error messages.
    pub fn log_tail(&self) -> String {
        log_tail(&self.log)
    }
}

/// A command that runs when this process ends or when the value is dropped.
///
/// A shell waits until its pipe is closed, and then runs the command.
#[derive(Debug)]
pub struct AtExit {
    _child: Child,
    _pipe: ChildStdin,
}

impl AtExit {
    /// Erases a directory. The processes that write to it are killed at the same moment, so the shell tries again until
    /// they have ended.
    pub fn erase(dir: &Path) -> Result<Self> {
        let script =
            r#"for _ in 1 2 3 4 5 6 7 8 9 10; do sleep 0.3; rm -rf -- "$1" 2>/dev/null && break; done"#;
        Self::run(script, &[dir.as_os_str()])
    }

    /// Removes a container and its volumes, twice: this process may end while the engine still creates the container.
    pub(crate) fn remove_container(name: &str) -> Result<Self> {
        let script = r#"docker rm -f -v "$1"; sleep 3; docker rm -f -v "$1""#;
        Self::run(script, &[OsStr::new(name)])
    }

    /// Resumes stopped processes, so that they notice that their parent has ended, and exit.
    pub fn resume(pids: &[u32]) -> Result<Self> {
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let pids: Vec<&OsStr> = pids.iter().map(OsStr::new).collect();
        Self::run(r#"for pid in "$@"; do kill -s CONT "$pid"; done"#, &pids)
    }

    /// Runs a shell script with the arguments `$1`, `$2`, …
    pub fn run(script: &str, args: &[&OsStr]) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("trap '' HUP INT TERM; read -r _; {script}")).arg("at-exit").args(args);
        shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = shell.current_dir("/").spawn().context("failed to start a shell")?;
        let pipe = child.stdin.take().context("the shell has no standard input")?;
        Ok(Self { _child: child, _pipe: pipe })
    }
}

/// The process and all its descendants, by the system's process table.
///
/// A process group is not enough: PostgreSQL gives each of its backends a session of its own.
pub(crate) fn with_descendants(root: u32) -> Result<Vec<u32>> {
    let processes = processes()?;
    let mut pids = vec![root];
    let mut next = 0;
    while let Some(&parent) = pids.get(next) {
        pids.extend(processes.iter().filter(|process| process.parent == parent).map(|process| process.pid));
        next += 1;
    }
    Ok(pids)
}

struct Process {
    pid: u32,
    parent: u32,
    /// It has ended, and its parent has not asked about it yet.
    is_zombie: bool,
}

/// The system's process table.
fn processes() -> Result<Vec<Process>> {
    let table = Command::new("ps").args(["-A", "-o", "pid=", "-o", "ppid=", "-o", "stat="]).output();
    let table = table.context("failed to run `ps` (Debian's package is called procps)")?;
    let process = |line: &str| {
        let mut fields = line.split_whitespace();
        let (pid, parent) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(Process { pid, parent, is_zombie: fields.next()?.starts_with('Z') })
    };
    Ok(String::from_utf8_lossy(&table.stdout).lines().filter_map(process).collect())
}

/// Whether one of these processes runs.
fn any_runs(pids: &[u32]) -> Result<bool> {
    Ok(processes()?.iter().any(|process| pids.contains(&process.pid) && !process.is_zombie))
}

/// Sends a signal to each process by the shell's built-in `kill`: a slim system has no `kill` program, and the standard
/// library can send SIGKILL only.
pub(crate) fn signal_all(signal: &str, pids: &[u32]) -> Result<()> {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"kill -s "$0" "$@""#, signal]).args(pids.iter().map(u32::to_string));
    let output = shell.stdin(Stdio::null()).output().context("failed to start a shell")?;
    // One of several processes may have ended in the meantime. For a single process that is an error.
    if !output.status.success() && pids.len() == 1 {
        bail!("failed to send SIG{signal} to {pids:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// The last twelve lines of a log file that are not blank, for error messages.
pub(crate) fn log_tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let tail = lines.get(lines.len().saturating_sub(12)..).unwrap_or_default();
    format!("the end of {}:\n{}", log.display(), tail.join("\n"))
}
