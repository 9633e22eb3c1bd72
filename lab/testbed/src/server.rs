//! A private PostgreSQL or RabbitMQ server, in a container or as a process of the machine's own binaries.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use sqlx::{Connection as _, PgConnection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::command::{copy_surroundings, run};
use crate::container::{Container, ContainerSpec};
use crate::eventually::eventually_send;
use crate::guard::GuardedProcess;
use crate::home::Home;
use crate::power_loss::{TakenBack, Unsynced};
use crate::private_dir::PrivateDir;
use crate::restartable_process::RestartableProcess;
use crate::small_disk::SmallDisk;

/// PostgreSQL writes a checkpoint when it stops, RabbitMQ closes its queues.
const STOP_DEADLINE: Duration = Duration::from_secs(90);
/// A tool of RabbitMQ starts an Erlang VM; that takes seconds on a busy machine.
const TOOL_DEADLINE: Duration = Duration::from_secs(60);
/// After a crash PostgreSQL replays its log, and a container's first start runs `initdb`. RabbitMQ usually takes five
/// seconds, and both take longer while two cores also compile.
const READY_DEADLINE: Duration = Duration::from_secs(120);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// A server that the caller can kill, pause and restart. Each operation means the same for a container and for a local
/// process.
#[derive(Debug)]
pub struct Server {
    name: &'static str,
    place: Place,
    probe: Probe,
}

#[derive(Debug)]
enum Place {
    Container(Container),
    Local(Box<LocalServer>),
}

/// What a server that is ready answers. An open port proves nothing: the container engine's proxy accepts connections for
/// a server that is still starting.
#[derive(Debug)]
pub(crate) enum Probe {
    /// A login to the database of this URL succeeds.
    Postgres { url: String },
    /// The broker speaks AMQP on this port, and its management API answers.
    Rabbitmq { port: u16, api_url: String },
}

impl Probe {
    async fn check(&self) -> Result<()> {
        match self {
            Self::Postgres { url } => {
                let login = async { PgConnection::connect(url).await?.close().await };
                timeout(PROBE_TIMEOUT, login).await.context("the login timed out")??;
            }
            Self::Rabbitmq { port, api_url } => {
                check_amqp(*port).await?;
                let api = reqwest::Client::new().get(format!("{api_url}/api/whoami"));
                api.timeout(PROBE_TIMEOUT).send().await?.error_for_status()?;
            }
        }
        Ok(())
    }
}

/// Sends the AMQP protocol header and checks that the reply begins with a method frame (1).
pub(crate) async fn check_amqp(port: u16) -> Result<()> {
    let reply = timeout(PROBE_TIMEOUT, async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(b"AMQP\x00\x00\x09\x01").await?;
        stream.read_u8().await
    });
    let first = reply.await.context("no reply to the AMQP protocol header")??;
    ensure!(first == 1, "the reply is not AMQP 0-9-1");
    Ok(())
}

impl Server {
    /// Starts a new server in `home`, and waits until it is ready.
    pub(crate) async fn start_new(
        name: &'static str,
        home: Home,
        local: impl Future<Output = Result<LocalServer>>,
        container: ContainerSpec<'_>,
        probe: Probe,
    ) -> Result<Self> {
        match home {
            Home::Local => Self::start_local(name, local.await?, probe).await,
            Home::Docker => {
                let place = Place::Container(Container::start_new(container).await?);
                let server = Self { name, place, probe };
                server.wait_ready().await?;
                Ok(server)
            }
        }
    }

    /// Starts a process of this machine's binaries, and waits until it is ready.
    pub(crate) async fn start_local(name: &'static str, local: LocalServer, probe: Probe) -> Result<Self> {
        local.process.start()?;
        let server = Self { name, place: Place::Local(Box::new(local)), probe };
        server.wait_ready().await?;
        Ok(server)
    }

    /// Sends SIGKILL to the server and all its processes.
    pub async fn kill(&self) -> Result<()> {
        let docker = &["kill", "--signal", "KILL"];
        self.carry_out("kill", docker, async |server| server.process.kill().await).await
    }

    /// Starts the server again after [`Server::kill`] or [`Server::stop`], and waits until it accepts connections.
    pub async fn start(&self) -> Result<()> {
        self.carry_out("start", &["start"], async |server| server.process.start()).await?;
        self.wait_ready().await
    }

    /// The same, with another program until the next start. Not in containers.
    pub(crate) async fn start_program(&self, program: Option<&Path>) -> Result<()> {
        let process = &self.local()?.process;
        let started = program.map_or_else(|| process.start(), |program| process.start_program(program));
        self.done("start", started)?;
        self.wait_ready().await
    }

    /// Sends SIGSTOP: connections stay open and the server does not answer.
    pub async fn pause(&self) -> Result<()> {
        self.carry_out("pause", &["pause"], async |server| server.process.pause()).await
    }

    /// Undoes [`Server::pause`].
    pub async fn resume(&self) -> Result<()> {
        self.carry_out("resume", &["unpause"], async |server| server.process.resume()).await
    }

    /// Shuts the server down in order.
    pub async fn stop(&self) -> Result<()> {
        self.carry_out("stop", &["stop", "--time", "30"], LocalServer::stop).await
    }

    /// Starts the server again so that what it writes and does not sync can be taken back. Not in containers.
    pub async fn record_unsynced(&self) -> Result<Unsynced> {
        let local = self.local()?;
        let unsynced = Unsynced::new(local.dir.path(), &local.dir.path().join(local.data)).await?;
        for (variable, value) in unsynced.environment() {
            local.process.set(variable, &value.to_string_lossy());
        }
        self.stop().await?;
        self.start().await?;
        Ok(unsynced)
    }

    /// Counts everything that the server has written so far as synced.
    pub async fn forget_unsynced(&self, unsynced: &Unsynced) -> Result<()> {
        self.pause().await?;
        let forgotten = unsynced.forget();
        self.resume().await?;
        self.done("count the writes as synced of", forgotten)
    }

    /// Kills the server, and takes back what it has written and not synced: what a power failure does.
    pub async fn lose_power(&self, unsynced: &Unsynced) -> Result<TakenBack> {
        self.kill().await?;
        self.done("take back the unsynced writes of", unsynced.take_back())
    }

    /// Stops the server, moves its files onto a small file system, and starts it. Not in containers.
    pub async fn move_to_small_disk(&self) -> Result<()> {
        let local = self.local()?;
        self.stop().await?;
        let disk = SmallDisk::move_to(&local.dir.path().join(local.data)).await;
        let disk = self.done("move the files of", disk)?;
        ensure!(local.disk.set(disk).is_ok(), "the files of {} are on a small disk already", self.name);
        self.start().await
    }

    /// Fills the small disk until so many bytes are free. Returns how many another program has now written.
    pub fn fill_disk(&self, free: usize) -> Result<u64> {
        self.small_disk()?.fill(free)
    }

    /// Undoes [`Server::fill_disk`], and starts the server again if it has ended meanwhile. Returns whether it had.
    pub async fn free_disk(&self) -> Result<bool> {
        self.small_disk()?.free()?;
        let ended = self.pid().await.is_none();
        if ended {
            self.start().await?;
        }
        Ok(ended)
    }

    fn small_disk(&self) -> Result<&SmallDisk> {
        self.local()?.disk.get().context("the server is not on a small disk")
    }

    /// The directory of its files. Not in containers.
    pub(crate) fn dir(&self) -> Result<&PrivateDir> {
        Ok(&self.local()?.dir)
    }

    fn local(&self) -> Result<&LocalServer> {
        match &self.place {
            Place::Local(server) => Ok(server),
            Place::Container(_) => bail!("this needs the machine's own {}: --with local", self.name),
        }
    }

    /// Runs a command of the container engine on the container, or `local` on the process.
    async fn carry_out(
        &self,
        what: &str,
        docker: &[&str],
        local: impl AsyncFnOnce(&LocalServer) -> Result<()>,
    ) -> Result<()> {
        let done = match &self.place {
            Place::Container(container) => container.docker(docker).await,
            Place::Local(server) => local(server).await,
        };
        self.done(what, done)
    }

    /// The server's process id on this machine, or `None` while it does not run.
    pub async fn pid(&self) -> Option<u32> {
        match &self.place {
            Place::Container(container) => container.pid().await,
            Place::Local(server) => server.process.pid(),
        }
    }

    /// Runs one of the server's tools. A local one also gets `node`, because several may run.
    pub(crate) async fn tool(&self, name: &str, node: &[&str], args: &[&str]) -> Result<()> {
        match &self.place {
            Place::Container(container) => container.tool(name, args).await,
            Place::Local(server) => server.tool(name, &[node, args].concat()).await,
        }
    }

    fn done<T>(&self, what: &str, result: Result<T>) -> Result<T> {
        result.with_context(|| format!("failed to {what} {}", self.name))
    }

    /// Waits until the server is ready. If it has ended, fails at once with the end of its log.
    async fn wait_ready(&self) -> Result<()> {
        let what = format!("{} to accept connections", self.name);
        let ready = eventually_send(&what, READY_DEADLINE, || async move {
            match self.probe.check().await {
                Ok(()) => Ok(Some(Ok(()))),
                Err(not_ready) => match self.check_running().await {
                    Ok(()) => Err(not_ready),
                    Err(ended) => Ok(Some(Err(ended))),
                },
            }
        });
        let ready = ready.await?;
        self.done("start", ready)
    }

    async fn check_running(&self) -> Result<()> {
        match &self.place {
            Place::Container(container) => container.check_running().await,
            Place::Local(server) => server.process.check_running(),
        }
    }
}

/// A server as a process of the machine's own binaries.
#[derive(Debug)]
pub(crate) struct LocalServer {
    pub(crate) process: RestartableProcess,
    stop_signal: &'static str,
    /// Another process that the server needs (RabbitMQ's name server).
    _companion: Option<GuardedProcess>,
    /// Where `data` is, after [`Server::move_to_small_disk`].
    disk: OnceLock<SmallDisk>,
    /// After the processes, because fields are dropped in order: the directory is erased after the processes were killed.
    dir: PrivateDir,
    /// The directory in it that has the server's files.
    data: &'static str,
}

impl LocalServer {
    pub(crate) fn new(
        command: Command,
        stop_signal: &'static str,
        dir: PrivateDir,
        data: &'static str,
    ) -> Self {
        let process = RestartableProcess::new(command, dir.path().join("server.log"));
        Self { process, stop_signal, _companion: None, disk: OnceLock::new(), dir, data }
    }

    pub(crate) fn with_companion(self, companion: Option<GuardedProcess>) -> Self {
        Self { _companion: companion, ..self }
    }

    /// Runs a tool from the directory of the server's program, in the server's environment.
    pub(crate) async fn tool(&self, name: &str, args: &[&str]) -> Result<()> {
        let server = self.process.command();
        let program = Path::new(server.get_program()).with_file_name(name);
        let mut tool = Command::new(program);
        copy_surroundings(server, &mut tool);
        tool.args(args);
        run(tool, TOOL_DEADLINE).await
    }

    /// Asks the server to shut down in order, and waits until it has. Resumes it first if it is paused.
    pub(crate) async fn stop(&self) -> Result<()> {
        self.process.resume()?;
        self.process.stop(self.stop_signal, STOP_DEADLINE).await.map(drop)
    }
}
