//! Docker or this machine's own servers: who decides, and by what.

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use testbed::{Home, IMAGES, can_install, install_missing, missing_packages};
use tokio::process::Command;

use crate::terminal::Terminal;

/// `--with`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum With {
    /// Containers.
    Docker,
    /// PostgreSQL and RabbitMQ of this machine, as private processes on free ports.
    Local,
}

impl From<With> for Home {
    fn from(with: With) -> Self {
        match with {
            With::Docker => Self::Docker,
            With::Local => Self::Local,
        }
    }
}

/// What was said on the command line about where things run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) with: Option<With>,
    pub(crate) may_install: bool,
}

impl Choice {
    /// The kind of system that was asked for, if any.
    pub(crate) fn wanted(self) -> Option<Home> {
        self.with.map(Home::from)
    }

    /// For the whole system: containers need `docker compose` too.
    pub(crate) async fn of_system(self, terminal: &Terminal) -> Result<Home> {
        self.decide(terminal, true).await
    }

    /// For the tests' servers: an engine is enough.
    pub(crate) async fn of_servers(self, terminal: &Terminal) -> Result<Home> {
        self.decide(terminal, false).await
    }

    /// Containers if an engine answers that has the images or gets them; else this machine's servers, installed
    /// first where that is possible and allowed; else an error with the command that helps.
    async fn decide(self, terminal: &Terminal, with_compose: bool) -> Result<Home> {
        let no_docker = match self.with {
            Some(With::Local) => None,
            _ => docker_is_usable(terminal, with_compose).await.err(),
        };
        match (self.with, no_docker) {
            (Some(With::Docker), Some(reason)) => Err(reason.context("--with docker is not possible here")),
            (Some(With::Docker) | None, None) => Ok(Home::Docker),
            (_, reason) => {
                self.local(terminal, reason).await?;
                Ok(Home::Local)
            }
        }
    }

    async fn local(self, terminal: &Terminal, no_docker: Option<anyhow::Error>) -> Result<()> {
        let missing = missing_packages();
        if missing.is_empty() {
            return Ok(());
        }
        let why_not_docker = no_docker.map_or(String::new(), |reason| format!(" (Docker: {reason:#})"));
        if !self.may_install {
            let packages = missing.join(" ");
            bail!(
                "--no-install, but the servers are missing: `apt-get install -y {packages}`{why_not_docker}"
            );
        }
        if can_install().is_err() {
            // The finders' errors know the commands for this and other systems.
            let servers = testbed::find_postgres().and(testbed::find_rabbitmq()).map(drop);
            return servers.with_context(|| format!("the servers are missing{why_not_docker}"));
        }
        terminal.say(format!("Installing {} with apt-get (--no-install refuses) …", missing.join(" and ")));
        install_missing(|step| terminal.say(format!("  {step}"))).await
    }
}

async fn docker_is_usable(terminal: &Terminal, with_compose: bool) -> Result<()> {
    testbed::engine_version().await.context("no container engine answers")?;
    if with_compose {
        compose_version().await?;
    }
    for image in IMAGES {
        if !testbed::image_is_present(image).await {
            terminal.say(format!("Pulling {image} …"));
            let pull = Command::new("docker").args(["pull", "--quiet", image]).output().await?;
            if !pull.status.success() {
                bail!(
                    "{image} can be neither found nor pulled: {}",
                    String::from_utf8_lossy(&pull.stderr).trim()
                );
            }
        }
    }
    Ok(())
}

/// The version of `docker compose`, or how to get it.
pub(crate) async fn compose_version() -> Result<String> {
    let output = Command::new("docker").args(["compose", "version", "--short"]).output().await;
    match output {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        _ => bail!("`docker compose` is missing: https://docs.docker.com/compose/install/"),
    }
}
