//! Nothing outlives its owner.
//!
//! A destructor does not run after `kill -9`, and a parent's death tells its children nothing. A pipe does: the
//! kernel closes our end whatever the way in which we die. Each server therefore runs beside a small shell that
//! waits for the end of such a pipe, and then kills or erases what was left. No unsafe code, no watchdog thread, no
//! signal handler that `kill -9` would skip.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::eventually::eventually_send;

/// The watcher is started first and detached, so that it is no child of the server; then the shell becomes the
/// server (`exec`), so that the process id we see is the server's own. Both are in one process group, which nobody
/// else joins: killing "group 0" cannot hit a stranger, not even one that inherited a process id.
const LEASH: &str = r#"
exec 3<&0 </dev/null
( ( trap '' HUP INT TERM; read -r _ <&3; kill -s KILL 0 ) & )
exec "$@" 3<&-
"#;

/// A child process that dies with us, in a process group of its own (so that a terminal's Ctrl-C, which goes to the
/// whole foreground group, reaches us first and us alone).
#[derive(Debug)]
pub struct Leash {
    child: Child,
    /// Closing this is what ends the process group.
    _line: ChildStdin,
    log: PathBuf,
}

impl Leash {
    /// Starts `command` with its output appended to `log`.
    pub fn spawn(command: &Command, log: &Path) -> Result<Self> {
        let out = File::options().create(true).append(true).open(log);
        let out = out.with_context(|| format!("cannot write {}", log.display()))?;
        let mut shell = Command::new("sh");
        shell.args(["-c", LEASH, "leash"]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            shell.current_dir(dir);
        }
        shell.process_group(0).stdin(Stdio::piped()).stdout(out.try_clone()?).stderr(out);
        let mut child = shell.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let line = child.stdin.take().context("the child has no standard input")?;
        Ok(Self { child, _line: line, log: log.to_owned() })
    }

    /// The process id of the command itself.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, or `None` while it runs.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Sends a signal (`"KILL"`, `"STOP"`, …) to the process and all its descendants.
    pub fn signal(&self, signal: &str) -> Result<()> {
        signal_all(signal, &with_descendants(self.pid())?)
    }

    /// Sends a signal to the process alone, as `kill PID` would.
    pub fn signal_one(&self, signal: &str) -> Result<()> {
        signal_all(signal, &[self.pid()])
    }

    /// Waits until it has ended, and says how.
    pub async fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let pid = self.pid();
        eventually_send(&format!("process {pid} to end"), deadline, || std::future::ready(self.ended())).await
    }

    /// The last lines that it wrote: what an error message about its death should show.
    pub fn last_words(&self) -> String {
        last_lines(&self.log, 12)
    }
}

/// Something to be done when this process is gone, or when the value is dropped: a shell that waits for the end of
/// a pipe and then runs a command.
#[derive(Debug)]
pub struct AtEnd {
    _child: Child,
    _line: ChildStdin,
}

impl AtEnd {
    /// Erases a directory. The processes that write there are killed at the same moment, so it is tried again until
    /// they are gone.
    pub fn erase(dir: &Path) -> Result<Self> {
        let script =
            r#"for _ in 1 2 3 4 5 6 7 8 9 10; do sleep 0.3; rm -rf -- "$1" 2>/dev/null && break; done"#;
        Self::run(script, &[dir.as_os_str()])
    }

    /// Removes a container and its volumes. Twice, because we may die while the engine is still creating it.
    pub fn remove_container(name: &str) -> Result<Self> {
        let script = r#"docker rm -f -v "$1"; sleep 3; docker rm -f -v "$1""#;
        Self::run(script, &[OsStr::new(name)])
    }

    /// Lets stopped processes go on, so that they can notice that they are orphans and leave.
    pub fn resume(pids: &[u32]) -> Result<Self> {
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let pids: Vec<&OsStr> = pids.iter().map(OsStr::new).collect();
        Self::run(r#"for pid in "$@"; do kill -s CONT "$pid"; done"#, &pids)
    }

    /// Runs a shell script with arguments `$1`, `$2`, …
    pub fn run(script: &str, args: &[&OsStr]) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("trap '' HUP INT TERM; read -r _; {script}")).arg("at-end").args(args);
        shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = shell.current_dir("/").spawn().context("cannot start a shell")?;
        let line = child.stdin.take().context("the shell has no standard input")?;
        Ok(Self { _child: child, _line: line })
    }
}

/// The process and everything that it started and that it started in turn, by the system's process table. Process
/// groups would not do: PostgreSQL gives each of its backends a session of its own.
pub(crate) fn with_descendants(root: u32) -> Result<Vec<u32>> {
    let table = Command::new("ps").args(["-A", "-o", "pid=", "-o", "ppid="]).output();
    let table = table.context("`ps` is needed (Debian's package is called procps)")?;
    let text = String::from_utf8_lossy(&table.stdout);
    let pairs: Vec<(u32, u32)> = text
        .lines()
        .filter_map(|line| {
            let mut numbers = line.split_whitespace().map(str::parse);
            Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
        })
        .collect();
    let mut family = vec![root];
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        family.extend(pairs.iter().filter(|(_, ppid)| *ppid == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    Ok(family)
}

/// The shell's own `kill`, because a slim system has no other, and the standard library knows SIGKILL only.
pub(crate) fn signal_all(signal: &str, pids: &[u32]) -> Result<()> {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"kill -s "$0" "$@""#, signal]).args(pids.iter().map(u32::to_string));
    let output = shell.stdin(Stdio::null()).output().context("cannot start a shell")?;
    // One of several may have left in the meantime; that none could be reached is an error.
    if !output.status.success() && pids.len() == 1 {
        bail!("cannot send SIG{signal} to {pids:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// The end of a log file, for error messages.
pub(crate) fn last_lines(log: &Path, lines: usize) -> String {
    let mut text = Vec::new();
    if let Ok(mut file) = File::open(log) {
        let _ = file.read_to_end(&mut text);
    }
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let tail = all.get(all.len().saturating_sub(lines)..).unwrap_or_default();
    format!("the end of {}:\n{}", log.display(), tail.join("\n"))
}
