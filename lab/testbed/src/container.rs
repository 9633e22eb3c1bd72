//! A server in a container.
//!
//! testcontainers creates the container (and pulls its image). The faults are commands of the container engine.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use testcontainers::bollard::models::HostConfig;
use testcontainers::core::IntoContainerPort as _;
use testcontainers::runners::AsyncRunner as _;
use testcontainers::{GenericImage, ImageExt as _};
use tokio::process::Command;

use crate::command::{output, shown};
use crate::guard::AtExit;

pub(crate) const POSTGRES_IMAGE: &str = "postgres:17";
pub(crate) const RABBITMQ_IMAGE: &str = "rabbitmq:4-management";
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
        let (image, tag) = spec.image.split_once(':').unwrap_or((spec.image, "latest"));
        // Registered before the container exists, because this process may end in between.
        let remove = AtExit::remove_container(&spec.name)?;
        let mut request = GenericImage::new(image, tag)
            .with_container_name(&spec.name)
            // The Erlang VM sizes its tables by this limit: without one it allocates hundreds of megabytes.
            .with_ulimit("nofile", 16_384, Some(16_384))
            .with_startup_timeout(PULL_DEADLINE)
            .with_host_config_modifier(publish_on_loopback_only);
        for (host, inside) in spec.ports {
            // The engine does not choose the port, so that a container keeps it when it is stopped and started.
            request = request.with_mapped_port(host, inside.tcp());
        }
        for (name, value) in spec.env {
            request = request.with_env_var(name, value);
        }
        if !spec.args.is_empty() {
            request = request.with_cmd(spec.args);
        }
        let container = request
            .start()
            .await
            .with_context(|| format!("failed to start a container of {}", spec.image))?;
        // Its destructor needs the runtime that created it, and does not run after `kill -9`. The guard above removes
        // the container in every case.
        std::mem::forget(container);
        Ok(Self { name: spec.name, _remove: remove })
    }

    pub(crate) async fn kill(&self) -> Result<()> {
        docker(&["kill", "--signal", "KILL", &self.name]).await.map(drop)
    }

    pub(crate) async fn start(&self) -> Result<()> {
        docker(&["start", &self.name]).await.map(drop)
    }

    pub(crate) async fn pause(&self) -> Result<()> {
        docker(&["pause", &self.name]).await.map(drop)
    }

    pub(crate) async fn resume(&self) -> Result<()> {
        docker(&["unpause", &self.name]).await.map(drop)
    }

    pub(crate) async fn stop(&self) -> Result<()> {
        docker(&["stop", "--time", "30", &self.name]).await.map(drop)
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

/// Sets the address of published ports: without one they are open to the whole network.
fn publish_on_loopback_only(host: &mut HostConfig) {
    for bindings in host.port_bindings.iter_mut().flat_map(|ports| ports.values_mut()).flatten() {
        for binding in bindings {
            binding.host_ip = Some("127.0.0.1".to_owned());
        }
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
            docker_within(&["pull", "--quiet", image], PULL_DEADLINE).await?;
        }
    }
    Ok(())
}

async fn docker(args: &[&str]) -> Result<String> {
    docker_within(args, COMMAND_DEADLINE).await
}

/// Runs `docker` and returns its output. The error shows the last line of its error output.
async fn docker_within(args: &[&str], deadline: Duration) -> Result<String> {
    let mut docker = Command::new("docker");
    docker.args(args);
    let output = output(&mut docker, deadline).await?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let reason = errors.trim().lines().last().unwrap_or("no reason given");
        bail!("`{}` failed: {reason}", shown(docker.as_std()));
    }
    // `docker logs` writes the container's error output to its own. Other commands write results to standard output.
    Ok(format!("{}{}", String::from_utf8_lossy(&output.stdout), if args[0] == "logs" { &errors } else { "" }))
}
