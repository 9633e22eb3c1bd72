//! A server as a process of the machine's own binaries: the verbs that PostgreSQL and RabbitMQ have in common.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::binaries::target_dir;
use crate::guard::{AtEnd, Leash, signal_all, with_descendants};

/// After SIGKILL the kernel needs a moment to take a large process apart.
const KILLED_WITHIN: Duration = Duration::from_secs(10);
/// PostgreSQL writes a checkpoint when it is asked to stop, RabbitMQ closes its queues.
const STOPPED_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct LocalServer {
    command: Command,
    log: PathBuf,
    stop_signal: &'static str,
    state: Mutex<State>,
    /// Last: it erases the directory when the processes are gone.
    _dir: PrivateDir,
}

#[derive(Debug, Default)]
struct State {
    process: Option<Leash>,
    /// While paused: should we die, the paused ones must wake up to notice.
    paused: Option<(Vec<u32>, AtEnd)>,
    /// What the server needs beside it (RabbitMQ's name server).
    companion: Option<Leash>,
}

impl LocalServer {
    pub(crate) fn new(command: Command, stop_signal: &'static str, dir: PrivateDir) -> Self {
        let log = dir.path().join("server.log");
        Self { command, log, stop_signal, state: Mutex::default(), _dir: dir }
    }

    pub(crate) fn with_companion(self, companion: Leash) -> Self {
        self.state().companion = Some(companion);
        self
    }

    /// Runs a tool that lies beside the server's program, in the server's environment.
    pub(crate) async fn tool(&self, name: &str, args: &[&str]) -> Result<()> {
        let program = Path::new(self.command.get_program()).with_file_name(name);
        let mut tool = tokio::process::Command::new(&program);
        for (name, value) in self.command.get_envs() {
            if let Some(value) = value {
                tool.env(name, value);
            }
        }
        let output = tool.args(args).kill_on_drop(true).output().await;
        let output = output.with_context(|| format!("cannot run {}", program.display()))?;
        if !output.status.success() {
            bail!("{} said: {}", program.display(), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn start(&self) -> Result<()> {
        let mut state = self.state();
        if let Some(process) = &mut state.process
            && process.ended()?.is_none()
        {
            bail!("it is already running, as process {}", process.pid());
        }
        state.process = Some(Leash::spawn(&self.command, &self.log)?);
        Ok(())
    }

    /// An error with the server's last words if it has ended: whoever waits for it need not wait any longer.
    pub(crate) fn check_alive(&self) -> Result<()> {
        let mut state = self.state();
        let process = state.process.as_mut().context("it was not started")?;
        match process.ended()? {
            None => Ok(()),
            Some(status) => bail!("it ended ({status}); {}", process.last_words()),
        }
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        let mut state = self.state();
        let process = state.process.as_mut()?;
        process.ended().ok()?.is_none().then(|| process.pid())
    }

    pub(crate) async fn kill(&self) -> Result<()> {
        let mut process = self.take_process()?;
        process.signal("KILL")?;
        process.wait(KILLED_WITHIN).await?;
        self.state().paused = None;
        Ok(())
    }

    pub(crate) async fn stop(&self) -> Result<()> {
        self.resume()?;
        let mut process = self.take_process()?;
        process.signal_one(self.stop_signal)?;
        process.wait(STOPPED_WITHIN).await?;
        Ok(())
    }

    pub(crate) fn pause(&self) -> Result<()> {
        let mut state = self.state();
        let pid = state.process.as_ref().context("it is not running")?.pid();
        let family = with_descendants(pid)?;
        let wake = AtEnd::resume(&family)?;
        signal_all("STOP", &family)?;
        state.paused = Some((family, wake));
        Ok(())
    }

    pub(crate) fn resume(&self) -> Result<()> {
        match self.state().paused.take() {
            Some((family, _wake)) => signal_all("CONT", &family),
            None => Ok(()),
        }
    }

    fn take_process(&self) -> Result<Leash> {
        self.state().process.take().context("it is not running")
    }
}

/// A directory that is erased when the value is dropped, or when this process is gone.
#[derive(Debug)]
pub(crate) struct PrivateDir {
    path: PathBuf,
    _erase: AtEnd,
}

impl PrivateDir {
    /// In cargo's target directory, or in the system's directory for temporary files where `user` (the one who will
    /// run the server) cannot reach the former: a checkout under `/root` is closed to everybody else.
    pub(crate) fn new(name: &str, user: Option<&str>) -> Result<Self> {
        let candidates = target_dir().map(|target| target.join("testbed"));
        let candidates = candidates.into_iter().chain([std::env::temp_dir().join("testbed")]);
        let mut why = Vec::new();
        for parent in candidates {
            let path = parent.join(format!("{name}-{}-{}", std::process::id(), fastrand::u32(..)));
            match prepare(&path, user) {
                Ok(erase) => return Ok(Self { path, _erase: erase }),
                Err(reason) => why.push(format!("{reason:#}")),
            }
        }
        bail!("no directory for a server's data: {}", why.join("; "))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn prepare(path: &Path, user: Option<&str>) -> Result<AtEnd> {
    let erase = AtEnd::erase(path)?;
    std::fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))?;
    if let Some(user) = user {
        let owned = Command::new("chown").arg(user).arg(path).status().context("cannot run chown")?;
        let reached = as_user(user, "sh").args(["-c", r#"cd "$0" && test -w ."#]).arg(path).output()?;
        if !owned.success() || !reached.status.success() {
            bail!("{user} cannot write {}", path.display());
        }
    }
    Ok(erase)
}

/// `program` as another user, without that user's shell or login session.
pub(crate) fn as_user(user: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", user, "--regid", user, "--clear-groups", "--"]).arg(program);
    command
}

/// Whether we are the superuser, whom PostgreSQL refuses to serve. `id` rather than a crate: it is asked once.
pub(crate) fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}
