//! How a system is found or started.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result};
use testbed::{Home, Postgres, RabbitmqCluster, Setup, TestDatabase};

use super::{Access, Remote, RunningSystem};
use crate::alteration::Alteration;
use crate::choice::Choice;
use crate::compose::Compose;
use crate::control::Control;
use crate::interrupt::interrupted;
use crate::local_system::LocalSystem;
use crate::network_system::NetworkSystem;
use crate::own_system::OwnSystem;
use crate::part::NODES;
use crate::state::{Addresses, State};
use crate::terminal::Terminal;
use crate::without::is_copy;

impl RunningSystem {
    /// Finds the system that is running already. With `home`, only one of that kind counts.
    pub(crate) async fn find(home: Option<Home>) -> Result<Option<Self>> {
        if let Some(system) = NetworkSystem::from_env() {
            let addresses = system.addresses.clone();
            return Ok(Some(Self::at(addresses, Access::Network(Box::new(system)), false)));
        }
        if home != Some(Home::Docker)
            && let Some(State { addresses, control, token, .. }) = State::read()
            && let Ok(acting) = Control::connect(&control, &token).await
            && let Ok(asking) = Control::connect(&control, &token).await
        {
            let remote = Box::new(Remote { acting, asking });
            return Ok(Some(Self::at(addresses, Access::Remote(remote), false)));
        }
        if home != Some(Home::Local)
            && !is_copy()
            && let Ok(compose) = Compose::new()
            // An error means that there is no engine, so nothing runs in one.
            && let Ok(Some(orders_url)) = compose.orders_url().await
        {
            return Ok(Some(Self::containers(orders_url, compose, false)));
        }
        Ok(None)
    }

    /// Finds the system that is running, and fails if none is.
    pub(crate) async fn require(choice: Choice) -> Result<Self> {
        Self::find(choice.with).await?.context("no system is running: `cargo demo up` starts one")
    }

    /// Starts a system, and returns when it accepts orders.
    async fn start(choice: Choice, home: Home, terminal: &Terminal) -> Result<Self> {
        // No image lacks a protection: without one, only the servers are containers.
        if home == Home::Local || is_copy() {
            let servers = choice.start_servers(home, 1, terminal);
            return Self::local(LocalSystem::start(servers, OwnSystem::for_people(1), terminal).await?);
        }
        let compose = Compose::new()?;
        compose.up(terminal).await?;
        let orders_url = compose.orders_url().await?.context("the container of orders is not running")?;
        Ok(Self::containers(orders_url, compose, true))
    }

    /// Starts a system for one drill, beside any that is running. `None`: interrupted.
    pub(crate) async fn start_own(
        choice: Choice,
        own: OwnSystem,
        logs: PathBuf,
        terminal: &Terminal,
    ) -> Result<Option<Self>> {
        let own = OwnSystem { logs: Some(logs), ..own };
        tokio::select! {
            system = async {
                // Only the servers can be containers: no image contains the variants and the lab programs. A standby, a cluster,
                // a restore, a loss of power and a full disk need processes; compose.cluster.yaml has a cluster.
                let nodes = if own.cluster { NODES.len() } else { 1 };
                let are_processes = own.cluster || own.standby.is_some() || own.needs_processes;
                let choice = if are_processes { Choice { with: Some(Home::Local), ..choice } } else { choice };
                let home = choice.for_servers(terminal).await?;
                let servers = choice.start_servers(home, nodes, terminal);
                Self::local(LocalSystem::start(servers, own, terminal).await?).map(Some)
            } => system,
            stop = interrupted() => stop.map(|()| None),
        }
    }

    /// Starts a separate system, works with it, and stops it. `None`: interrupted.
    pub(crate) async fn with_own<T>(
        choice: Choice,
        own: OwnSystem,
        logs: PathBuf,
        terminal: &Terminal,
        work: impl AsyncFnOnce(&Self) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(system) = Self::start_own(choice, own, logs, terminal).await? else { return Ok(None) };
        let done = work(&system).await;
        // A process that was killed last may not stop in order: what was done says more.
        let stopped = system.stop(terminal).await;
        let done = done?;
        stopped.map(|()| Some(done))
    }

    /// Starts a system for a test, on servers that it shares with other tests, and waits until it is ready. It has no proxies.
    pub async fn shared(setup: Setup) -> Result<Self> {
        Self::on(testbed::database().await?, setup).await
    }

    /// The same, in a database of the test's choice.
    pub async fn on(database: TestDatabase, setup: Setup) -> Result<Self> {
        Self::local(LocalSystem::start_shared(database, setup).await?)
    }

    /// Starts a system for a test that breaks servers or routes: they belong to it alone.
    pub async fn private(setup: Setup) -> Result<Self> {
        let home = Home::choose().await?;
        let servers = async { tokio::try_join!(Postgres::private_in(home), RabbitmqCluster::start(home, 1)) };
        let own = OwnSystem { alteration: Alteration::of(&setup), ..setup.into() };
        // To standard error: a test may print a table to standard output.
        Self::local(LocalSystem::start(servers, own, &Terminal::new(true)).await?)
    }

    /// Finds the system that is running, or starts one. `None`: interrupted, and nothing is left running.
    pub(crate) async fn find_or_start(choice: Choice, terminal: &Terminal) -> Result<Option<Self>> {
        if let Some(system) = Self::find(choice.with).await? {
            terminal.print(format!("Using the system that is running at {}.", system.orders_url()));
            return Ok(Some(system));
        }
        let home = tokio::select! {
            home = choice.for_system(terminal) => home?,
            stop = interrupted() => return stop.map(|()| None),
        };
        tokio::select! {
            system = Self::start(choice, home, terminal) => system.map(Some),
            stop = interrupted() => {
                stop?;
                // Child processes were killed when the future was dropped. Containers belong to the engine.
                if home == Home::Docker && !is_copy() {
                    Compose::new()?.down(true).await?;
                }
                Ok(None)
            }
        }
    }

    fn local(system: LocalSystem) -> Result<Self> {
        Ok(Self::at(system.addresses()?, Access::Local(Box::new(system)), true))
    }

    fn at(addresses: Addresses, access: Access, started_here: bool) -> Self {
        Self::new(addresses.orders_url.clone(), Some(addresses), access, started_here)
    }

    fn containers(orders_url: String, compose: Compose, started_here: bool) -> Self {
        Self::new(orders_url, None, Access::Containers(compose), started_here)
    }

    fn new(orders_url: String, addresses: Option<Addresses>, access: Access, started_here: bool) -> Self {
        let (faults, clients) = (Mutex::default(), Arc::default());
        Self { orders_url, access, addresses, faults, started_here, clients }
    }
}
