//! The choice between Docker and this machine's own servers.

use anyhow::{Context as _, Result, bail, ensure};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use testbed::{
    Home, IMAGES, Postgres, RabbitmqCluster, can_install, find_faketime, install_packages, missing_packages,
};
use tokio::process::Command;

use crate::terminal::Terminal;

/// Parses `--with`.
pub(crate) fn home() -> impl TypedValueParser<Value = Home> {
    let docker = PossibleValue::new("docker").help("Containers");
    let local = PossibleValue::new("local")
        .help("This machine's PostgreSQL and RabbitMQ, as private processes on free ports");
    PossibleValuesParser::new([docker, local])
        .map(|name| if name == "docker" { Home::Docker } else { Home::Local })
}

/// The options of the command line that decide where servers run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) with: Option<Home>,
    pub(crate) may_install: bool,
}

impl Choice {
    /// Decides for the whole system. Containers need `docker compose` too.
    pub(crate) async fn for_system(self, terminal: &Terminal) -> Result<Home> {
        self.decide(terminal, true).await
    }

    /// Decides for the servers of tests, which only need a container engine.
    pub(crate) async fn for_servers(self, terminal: &Terminal) -> Result<Home> {
        self.decide(terminal, false).await
    }

    /// Installs libfaketime if it is missing, where that is possible and allowed.
    pub(crate) async fn prepare_faketime(self, terminal: &Terminal) -> Result<()> {
        match find_faketime() {
            Ok(_) => Ok(()),
            Err(missing) => self.install("libfaketime", missing, terminal).await,
        }
    }

    /// Installs a package, where that is possible and allowed; else the error says what is missing.
    pub(crate) async fn install(
        self,
        package: &str,
        missing: anyhow::Error,
        terminal: &Terminal,
    ) -> Result<()> {
        if !self.may_install || can_install().is_err() {
            return Err(missing);
        }
        confirm(package, terminal).await?;
        terminal.print(format!("Installing {package} with apt-get (--no-install prevents this) …"));
        install_packages(&[package], |step| terminal.print(format!("  {step}"))).await
    }

    /// Chooses containers if an engine answers and has the images or can pull them. Otherwise it chooses this machine's
    /// servers, if they are installed or can be. Otherwise the error names the command that helps.
    async fn decide(self, terminal: &Terminal, with_compose: bool) -> Result<Home> {
        let no_docker = match self.with {
            Some(Home::Local) => None,
            _ => check_docker(terminal, with_compose).await.err(),
        };
        match (self.with, no_docker) {
            (Some(Home::Docker), Some(reason)) => Err(reason.context("--with docker is not possible here")),
            (Some(Home::Docker) | None, None) => Ok(Home::Docker),
            (_, reason) => {
                self.check_local(reason)?;
                let missing = missing_packages();
                if !missing.is_empty() {
                    confirm(&missing.join(" and "), terminal).await?;
                }
                Ok(Home::Local)
            }
        }
    }

    /// Fails if this machine's servers are missing and must not or cannot be installed.
    fn check_local(self, no_docker: Option<anyhow::Error>) -> Result<()> {
        let missing = missing_packages();
        if missing.is_empty() {
            return Ok(());
        }
        let why_not_docker = no_docker.map_or(String::new(), |reason| format!(" (Docker: {reason:#})"));
        if !self.may_install {
            let packages = missing.join(" ");
            bail!("--no-install, but servers are missing: `apt-get install -y {packages}`{why_not_docker}");
        }
        if can_install().is_err() {
            // These errors name the commands for this and for other systems.
            let servers = testbed::find_postgres().and(testbed::find_rabbitmq()).map(drop);
            return servers.with_context(|| format!("servers are missing{why_not_docker}"));
        }
        Ok(())
    }

    /// Installs the servers that this machine lacks. [`decide`](Self::decide) has checked that this is possible.
    pub(crate) async fn install_servers(self, home: Home, terminal: &Terminal) -> Result<()> {
        let missing = missing_packages();
        if home == Home::Docker || missing.is_empty() {
            return Ok(());
        }
        terminal.print(format!(
            "Installing {} with apt-get (--no-install prevents this) …",
            missing.join(" and ")
        ));
        install_packages(&missing, |step| terminal.print(format!("  {step}"))).await
    }

    /// Starts private servers, with so many nodes of RabbitMQ, after installing those that are missing.
    pub(crate) async fn start_servers(
        self,
        home: Home,
        nodes: usize,
        terminal: &Terminal,
    ) -> Result<(Postgres, RabbitmqCluster)> {
        self.install_servers(home, terminal).await?;
        let place = match home {
            Home::Local => "from this machine's binaries",
            Home::Docker => "in containers",
        };
        let count = if nodes == 1 { String::new() } else { format!(" with {nodes} nodes") };
        terminal.print(format!("Starting PostgreSQL and RabbitMQ{count} {place} …"));
        tokio::try_join!(Postgres::private_in(home), RabbitmqCluster::start(home, nodes))
    }
}

/// Asks before anything is installed, if a person can answer. Without a terminal the installation goes on.
async fn confirm(packages: &str, terminal: &Terminal) -> Result<()> {
    let agreed = terminal.ask(format!("Install {packages} with apt-get, as root? [Y/n] ")).await?;
    ensure!(agreed, "nothing was installed");
    Ok(())
}

/// Checks that containers can be started, and pulls missing images.
async fn check_docker(terminal: &Terminal, with_compose: bool) -> Result<()> {
    testbed::engine_version().await.context("no container engine answers")?;
    if with_compose {
        compose_version().await?;
    }
    for image in IMAGES {
        if !testbed::image_is_present(image).await {
            terminal.print(format!("Pulling {image} …"));
            testbed::pull_image(image).await?;
        }
    }
    Ok(())
}

/// Returns the version of `docker compose`. The error says how to install it.
pub(crate) async fn compose_version() -> Result<String> {
    let output = Command::new("docker").args(["compose", "version", "--short"]).output().await;
    match output {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        _ => bail!("`docker compose` is missing: https://docs.docker.com/compose/install/"),
    }
}
