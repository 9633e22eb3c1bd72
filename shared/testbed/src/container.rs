//! A server in a container. testcontainers creates it (and pulls the image); the faults are the engine's own
//! commands, as a person would type them.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use testcontainers::bollard::models::HostConfig;
use testcontainers::core::IntoContainerPort as _;
use testcontainers::runners::AsyncRunner as _;
use testcontainers::{GenericImage, ImageExt as _};
use tokio::process::Command;
use tokio::time::timeout;

use crate::guard::AtEnd;

/// PostgreSQL's and RabbitMQ's image, as `name:tag`.
pub const IMAGES: [&str; 2] = ["postgres:17", "rabbitmq:4-management"];

/// An engine that does not answer a question in this time is not there.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Images may have to come over a slow line.
const PULLED_WITHIN: Duration = Duration::from_secs(300);

/// What a container is made of.
pub(crate) struct Recipe<'a> {
    pub(crate) name: String,
    pub(crate) image: &'a str,
    pub(crate) env: Vec<(&'a str, String)>,
    pub(crate) args: Vec<String>,
    /// Port on this machine, port in the container.
    pub(crate) ports: Vec<(u16, u16)>,
}

#[derive(Debug)]
pub(crate) struct Container {
    name: String,
    _remove: AtEnd,
}

impl Container {
    pub(crate) async fn start_new(recipe: Recipe<'_>) -> Result<Self> {
        let (image, tag) = recipe.image.split_once(':').unwrap_or((recipe.image, "latest"));
        // Before the container exists: we may die in between.
        let remove = AtEnd::remove_container(&recipe.name)?;
        let mut request = GenericImage::new(image, tag)
            .with_container_name(&recipe.name)
            // The Erlang VM sizes its tables by this: where it is unlimited they take hundreds of megabytes.
            .with_ulimit("nofile", 16_384, Some(16_384))
            .with_startup_timeout(PULLED_WITHIN)
            .with_host_config_modifier(loopback_only);
        for (host, inside) in recipe.ports {
            // Chosen by us, not by the engine: a container that is stopped and started keeps the port.
            request = request.with_mapped_port(host, inside.tcp());
        }
        for (name, value) in recipe.env {
            request = request.with_env_var(name, value);
        }
        if !recipe.args.is_empty() {
            request = request.with_cmd(recipe.args);
        }
        let container = request.start().await.with_context(|| format!("cannot start {}", recipe.image))?;
        // Its destructor needs the runtime that it was made in, and would not run after `kill -9` anyway. The guard
        // above removes the container, in every case.
        std::mem::forget(container);
        Ok(Self { name: recipe.name, _remove: remove })
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

    /// Runs a program inside.
    pub(crate) async fn tool(&self, name: &str, args: &[&str]) -> Result<()> {
        docker(&[&["exec", &self.name, name], args].concat()).await.map(drop)
    }

    /// The process id of the container's first process on this machine, or `None` while it is stopped.
    pub(crate) async fn pid(&self) -> Option<u32> {
        let said = docker(&["inspect", "--format", "{{.State.Pid}}", &self.name]).await.ok()?;
        said.trim().parse().ok().filter(|&pid| pid != 0)
    }

    /// An error with the server's last words if the container has stopped.
    pub(crate) async fn check_alive(&self) -> Result<()> {
        let state = docker(&["inspect", "--format", "{{.State.Running}}", &self.name]).await?;
        if state.trim() == "true" {
            return Ok(());
        }
        let words = docker(&["logs", "--tail", "12", &self.name]).await.unwrap_or_default();
        bail!("container {} has stopped:\n{words}", self.name)
    }
}

/// Published ports are open to the whole network unless an address is named.
fn loopback_only(host: &mut HostConfig) {
    for bindings in host.port_bindings.iter_mut().flat_map(|ports| ports.values_mut()).flatten() {
        for binding in bindings {
            binding.host_ip = Some("127.0.0.1".to_owned());
        }
    }
}

/// The engine's version, or why there is none to talk to.
pub async fn engine_version() -> Result<String> {
    let said = docker_within(&["version", "--format", "{{.Server.Version}}"], ANSWER_WITHIN).await?;
    Ok(said.trim().to_owned())
}

/// Whether the engine has the image already.
pub async fn image_is_present(image: &str) -> bool {
    docker_within(&["image", "inspect", "--format", "{{.Id}}", image], ANSWER_WITHIN).await.is_ok()
}

/// `Ok` if an engine answers that has both images, or can pull them.
pub(crate) async fn usable() -> Result<()> {
    engine_version().await?;
    for image in IMAGES {
        if !image_is_present(image).await {
            docker_within(&["pull", "--quiet", image], PULLED_WITHIN).await?;
        }
    }
    Ok(())
}

async fn docker(args: &[&str]) -> Result<String> {
    docker_within(args, Duration::from_secs(60)).await
}

async fn docker_within(args: &[&str], deadline: Duration) -> Result<String> {
    let shown = format!("docker {}", args.join(" "));
    let run = Command::new("docker").args(args).stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(deadline, run).await;
    let output = output.with_context(|| format!("`{shown}` took more than {} s", deadline.as_secs()))?;
    let output = output.context("the `docker` command is not installed")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("`{shown}`: {}", errors.trim().lines().last().unwrap_or("no reason given"));
    }
    // `docker logs` repeats each stream on its own; everything else writes to the first only.
    Ok(format!("{}{}", String::from_utf8_lossy(&output.stdout), if args[0] == "logs" { &errors } else { "" }))
}
