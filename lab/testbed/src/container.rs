//! A server in a container, by the commands of the container engine.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::process::Command;

use crate::command::{output, shown};
use crate::guard::AtExit;

/// The reasons for these two are in `docs/stability.md`, "Servers".
pub(crate) const POSTGRES_IMAGE: &str = "postgres:17-trixie";
pub(crate) const RABBITMQ_IMAGE: &str = "rabbitmq:4.2-management";
/// The images of both servers, as `name:tag`.
pub const IMAGES: [&str; 2] = [POSTGRES_IMAGE, RABBITMQ_IMAGE];

/// An engine that does not answer a query within this time counts as missing.
const QUERY_DEADLINE: Duration = Duration::from_secs(10);
const COMMAND_DEADLINE: Duration = Duration::from_secs(60);
/// The network may be slow.
const PULL_DEADLINE: Duration = Duration::from_secs(300);

/// What a container is created from.
pub(crate) struct ContainerSpec<'a> {
    pub(crate) name: String,
    pub(crate) image: &'a str,
    pub(crate) env: Vec<(&'a str, String)>,
    pub(crate) args: Vec<String>,
    /// Pairs of a port on this machine and a port in the container.
    pub(crate) ports: Vec<(u16, u16)>,
}

#[derive(Debug)]
pub(crate) struct Container {
    name: String,
    _remove: AtExit,
}

impl Container {
    pub(crate) async fn start_new(spec: ContainerSpec<'_>) -> Result<Self> {
        // Registered before the container exists, because this process may end in between.
        let remove = AtExit::remove_container(&spec.name)?;
        let mut run = Command::new("docker");
        // The Erlang VM sizes its tables by the limit of open files: without one it allocates hundreds of megabytes.
        run.args(["run", "--detach", "--name", &spec.name, "--ulimit", "nofile=16384:16384"]);
        for (host, inside) in spec.ports {
            // Without an address a published port is open to the whole network. The engine does not choose the port, so
            // that a container keeps it when it is stopped and started.
            run.args(["--publish", &format!("127.0.0.1:{host}:{inside}")]);
        }
        for (name, value) in spec.env {
            // The engine's client takes the value from its own environment: every user can read a command line.
            run.args(["--env", name]).env(name, value);
        }
        run.arg(spec.image).args(spec.args);
        output_of(run, PULL_DEADLINE)
            .await
            .with_context(|| format!("failed to start a container of {}", spec.image))?;
        Ok(Self { name: spec.name, _remove: remove })
    }

    /// Runs a command of the engine on this container.
    pub(crate) async fn docker(&self, command: &[&str]) -> Result<()> {
        docker(&[command, &[&self.name]].concat()).await.map(drop)
    }

    /// Runs a program in the container.
    pub(crate) async fn tool(&self, name: &str, args: &[&str]) -> Result<()> {
        docker(&[&["exec", &self.name, name], args].concat()).await.map(drop)
    }

    /// The id of the container's first process on this machine, or `None` while the container is stopped.
    pub(crate) async fn pid(&self) -> Option<u32> {
        let pid = docker(&["inspect", "--format", "{{.State.Pid}}", &self.name]).await.ok()?;
        pid.trim().parse().ok().filter(|&pid| pid != 0)
    }

    /// Fails with the end of the log if the container has stopped.
    pub(crate) async fn check_running(&self) -> Result<()> {
        let running = docker(&["inspect", "--format", "{{.State.Running}}", &self.name]).await?;
        if running.trim() == "true" {
            return Ok(());
        }
        let log = docker(&["logs", "--tail", "12", &self.name]).await.unwrap_or_default();
        bail!("container {} has stopped; the end of its log:\n{log}", self.name)
    }
}

/// The container engine's version. The error says why no engine can be used.
pub async fn engine_version() -> Result<String> {
    let version = docker_within(&["version", "--format", "{{.Server.Version}}"], QUERY_DEADLINE).await?;
    Ok(version.trim().to_owned())
}

/// The architecture for which the container engine runs programs, as Docker names it.
pub async fn engine_architecture() -> Result<String> {
    let architecture = docker_within(&["version", "--format", "{{.Server.Arch}}"], QUERY_DEADLINE).await?;
    Ok(architecture.trim().to_owned())
}

/// Whether the engine has the image already.
pub async fn image_is_present(image: &str) -> bool {
    docker_within(&["image", "inspect", "--format", "{{.Id}}", image], QUERY_DEADLINE).await.is_ok()
}

/// Succeeds if an engine answers that has both images or can pull them. Pulls them.
pub(crate) async fn check_usable() -> Result<()> {
    engine_version().await?;
    for image in IMAGES {
        if !image_is_present(image).await {
            pull_image(image).await?;
        }
    }
    Ok(())
}

/// Lets the engine pull an image.
pub async fn pull_image(image: &str) -> Result<()> {
    docker_within(&["pull", "--quiet", image], PULL_DEADLINE).await.map(drop)
}

async fn docker(args: &[&str]) -> Result<String> {
    docker_within(args, COMMAND_DEADLINE).await
}

async fn docker_within(args: &[&str], deadline: Duration) -> Result<String> {
    let mut docker = Command::new("docker");
    docker.args(args);
    output_of(docker, deadline).await
}

/// Runs a `docker` command and returns its output. The error shows the last line of its error output.
async fn output_of(mut docker: Command, deadline: Duration) -> Result<String> {
    let output = output(&mut docker, deadline).await?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let reason = errors.trim().lines().last().unwrap_or("no reason given");
        bail!("`{}` failed: {reason}", shown(docker.as_std()));
    }
    // `docker logs` writes the container's error output to its own. Other commands write results to standard output.
    let is_log = docker.as_std().get_args().next().is_some_and(|first| first == "logs");
    Ok(format!("{}{}", String::from_utf8_lossy(&output.stdout), if is_log { &errors } else { "" }))
}
