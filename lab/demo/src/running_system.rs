//! The running system, in processes or in containers: what commands and drills read from it and do to it.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use flaws::Flaw;
use serde_json::Value;
use testbed::{Home, sql};
use tokio::time::timeout;
use uuid::Uuid;

use crate::alteration::Alteration;
use crate::choice::Choice;
use crate::compose::Compose;
use crate::control::Control;
use crate::http;
use crate::interrupt::interrupted;
use crate::lab::BrokerApi;
use crate::local_system::LocalSystem;
use crate::metrics;
use crate::network_system::{self, NetworkSystem};
use crate::own_system::OwnSystem;
use crate::part::{Action, ActiveFaults};
use crate::paths;
use crate::proxies::Proxies;
use crate::reconciliation::{self, DuplicatesDropped, Reconciliation};
use crate::state::{Addresses, State};
use crate::terminal::Terminal;

const QUERY_DEADLINE: Duration = Duration::from_secs(20);

pub(crate) struct RunningSystem {
    orders_url: String,
    access: Access,
    /// `None`: its parts have no address outside of their network.
    addresses: Option<Addresses>,
    faults: Mutex<ActiveFaults>,
    /// Whether this command started the system, and so has to stop it.
    started_here: bool,
}

enum Access {
    /// Child processes of this command.
    Local(Box<LocalSystem>),
    /// Child processes of a `demo up` in another terminal.
    Remote(Box<Remote>),
    Containers(Compose),
    /// Containers, seen from one of their network.
    Network(Box<NetworkSystem>),
}

/// Two connections, so that a question does not wait until an action is done.
struct Remote {
    acting: Control,
    asking: Control,
}

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
        match home {
            Home::Local => Self::local(LocalSystem::start(choice, home, 1, 1, None, terminal).await?),
            Home::Docker => {
                let compose = Compose::new()?;
                compose.up(terminal).await?;
                let orders_url =
                    compose.orders_url().await?.context("the container of orders is not running")?;
                Ok(Self::containers(orders_url, compose, true))
            }
        }
    }

    /// Starts a system for one drill, beside any that is running. `None`: interrupted.
    pub(crate) async fn start_own(
        choice: Choice,
        own: OwnSystem,
        logs: PathBuf,
        terminal: &Terminal,
    ) -> Result<Option<Self>> {
        tokio::select! {
            system = async {
                // Only the servers can be containers: no image contains the variants and the lab programs. A standby, a cluster
                // and a restore need processes; compose.cluster.yaml has a cluster.
                let nodes = own.nodes;
                let are_processes = nodes > 1 || own.standby.is_some() || own.restores;
                let choice = if are_processes { Choice { with: Some(Home::Local), ..choice } } else { choice };
                let home = choice.for_servers(terminal).await?;
                Self::local(LocalSystem::start(choice, home, nodes, 1, Some((own, logs)), terminal).await?).map(Some)
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

    /// The proxies between the services and their servers.
    pub(crate) fn proxies(&self) -> Result<&Proxies> {
        match &self.access {
            Access::Local(system) => Ok(&system.tools()?.proxies),
            Access::Network(system) => system.proxies.as_ref().context("this network has no fault proxy"),
            Access::Remote(_) | Access::Containers(_) => bail!("the running system has no fault proxy"),
        }
    }

    /// The processes and servers of a system that this command has started.
    pub(crate) fn own(&self) -> Result<&LocalSystem> {
        if let Access::Local(system) = &self.access {
            Ok(system)
        } else {
            bail!("a separate system is needed")
        }
    }

    /// How it differs from the services as they are.
    pub(crate) fn alteration(&self) -> &Alteration {
        if let Access::Local(system) = &self.access { &system.alteration } else { &Alteration::None }
    }

    /// The protection that is left out, if there is one.
    pub(crate) fn variant(&self) -> Option<Flaw> {
        match self.alteration() {
            Alteration::Flaw(flaw) => Some(*flaw),
            _ => None,
        }
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
                if home == Home::Docker {
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
        let orders_url = addresses.orders_url.clone();
        Self { orders_url, access, addresses: Some(addresses), faults: Mutex::default(), started_here }
    }

    fn containers(orders_url: String, compose: Compose, started_here: bool) -> Self {
        let access = Access::Containers(compose);
        Self { orders_url, access, addresses: None, faults: Mutex::default(), started_here }
    }

    pub(crate) fn orders_url(&self) -> &str {
        &self.orders_url
    }

    /// Does something to a part, and records it for [`RunningSystem::repair`].
    pub(crate) async fn act(&self, action: Action, part: &str) -> Result<()> {
        // A fault is recorded before it is injected, since this command may be interrupted in between.
        if action.repair().is_some() {
            self.record(action, part);
        }
        match &self.access {
            Access::Local(system) => system.act(action, part).await?,
            Access::Remote(remote) => {
                remote.acting.request(&format!("{action} {part}")).await.map(drop)?;
            }
            Access::Containers(compose) => compose.act(action, part).await?,
            Access::Network(system) => system.act(action, part).await?,
        }
        if action.repair().is_none() {
            self.record(action, part);
        }
        Ok(())
    }

    fn record(&self, action: Action, part: &str) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).record(action, part);
    }

    /// Repairs every fault that this command has caused.
    ///
    /// One that cannot be repaired does not keep the others broken: all are tried, and the first failure is the error.
    pub(crate) async fn repair(&self) -> Result<()> {
        let mut failures = vec![];
        // A proxy of this process ends with its system. Another one would keep the fault for some minutes.
        if let Access::Network(system) = &self.access
            && let Some(proxies) = &system.proxies
        {
            failures.extend(proxies.clear_all().await.err());
        }
        let repairs = self.faults.lock().unwrap_or_else(PoisonError::into_inner).repairs();
        for (repair, part) in repairs {
            // The kill was interrupted before it happened, or another command has started the part again.
            if repair == Action::Start && matches!(self.pid(&part).await, Ok(Some(_))) {
                self.record(repair, &part);
                continue;
            }
            let repaired =
                self.act(repair, &part).await.with_context(|| format!("failed to {repair} the {part}"));
            failures.extend(repaired.err());
        }
        failures.into_iter().next().map_or(Ok(()), Err)
    }

    /// A part's process id, or `None` while it is down. An error means that this is unknown.
    pub(crate) async fn pid(&self, part: &str) -> Result<Option<u32>> {
        match &self.access {
            Access::Local(system) => Ok(system.pid(part).await),
            Access::Remote(remote) => Ok(remote.asking.request(&format!("pid {part}")).await?.parse().ok()),
            Access::Containers(compose) => compose.pid(part).await,
            Access::Network(system) => Ok(system.pid(part).await),
        }
    }

    /// Whether this command can kill and freeze parts by itself. Otherwise a person is asked to.
    pub(crate) fn can_act(&self) -> bool {
        !matches!(self.access, Access::Network(_))
    }

    /// The addresses of its parts. Containers have none outside of their network.
    pub(crate) fn addresses(&self) -> Result<&Addresses> {
        self.addresses.as_ref().context("the parts of containers have no address on this machine")
    }

    /// Whether its parts are processes of this machine, so that others can be started beside them.
    pub(crate) fn has_processes(&self) -> bool {
        matches!(self.access, Access::Local(_) | Access::Remote(_))
    }

    /// Whether the payment provider, the broker or the database answers in time.
    pub(crate) async fn answers(&self, part: &str, deadline: Duration) -> bool {
        let answers = async {
            match (&self.access, &self.addresses) {
                (Access::Containers(compose), _) => compose.runs(part).await.unwrap_or_default(),
                (_, Some(addresses)) => network_system::works(addresses, part).await,
                (_, None) => false,
            }
        };
        timeout(deadline, answers).await.unwrap_or(false)
    }

    /// Runs a query that returns one value, as the auditor, which can read everything and write nothing.
    pub(crate) async fn read(&self, query: &str) -> Result<String> {
        if let Access::Containers(compose) = &self.access {
            return compose.sql("auditor", query).await;
        }
        sql::read(&self.addresses()?.auditor_url, query, QUERY_DEADLINE).await
    }

    /// Runs statements with the login of a service, or of the payment provider: it owns its tables, so what it has put there, such
    /// as a trigger, runs with the rights of whoever writes. As an administrator, that would be every right.
    pub(crate) async fn execute_as(&self, service: &str, statements: &str) -> Result<()> {
        if let Access::Containers(compose) = &self.access {
            return compose.sql(service, statements).await.map(drop);
        }
        let url = self.addresses()?.databases.get(service);
        let url = url.with_context(|| format!("the login {service} is not known here"))?;
        sql::execute(url, statements, QUERY_DEADLINE).await
    }

    /// Runs a query that returns one number as text.
    pub(crate) async fn number<T: FromStr>(&self, query: &str) -> Result<T>
    where
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        let value = self.read(query).await?;
        value.trim().parse().with_context(|| format!("`{value}` is not a number"))
    }

    /// Access to its broker as an operator.
    pub(crate) fn broker_api(&self) -> Result<BrokerApi> {
        BrokerApi::new(&self.addresses()?.rabbitmq_api, "shop")
    }

    /// Reconciles the records with the acknowledged orders.
    pub(crate) async fn reconcile(&self, acknowledged: &[Uuid]) -> Result<Reconciliation> {
        let query = reconciliation::query(acknowledged, self.variant());
        Reconciliation::parse(&self.read(&query).await?)
    }

    /// The file of the acknowledgements for this system's orders.
    pub(crate) async fn ledger_path(&self) -> Result<PathBuf> {
        let identity = self.read("select system_identifier::text from pg_control_system()").await?;
        Ok(paths::ledger(&identity))
    }

    /// How many duplicates each service has dropped since it started. `None`: its metrics could not be read.
    pub(crate) async fn duplicates_dropped(&self) -> DuplicatesDropped {
        let count = async |service: &str| {
            metrics::sum(&self.metrics(service).await.ok()?, "inbox_duplicates_total").ok()
        };
        let (orders, inventory, billing) =
            tokio::join!(count("orders"), count("inventory"), count("billing"));
        DuplicatesDropped { orders, inventory, billing }
    }

    /// Reads a metric of a service's first process, added up over its labels.
    pub(crate) async fn metric(&self, service: &str, name: &str) -> Result<f64> {
        Ok(metrics::sum(&self.metrics(service).await?, name)?)
    }

    /// Reads a service's page of metrics.
    pub(crate) async fn metrics(&self, service: &str) -> Result<String> {
        if let Access::Containers(compose) = &self.access {
            return compose.metrics(service).await;
        }
        http::get(&format!("{}/metrics", self.addresses()?.url(service))).await
    }

    /// Sends a request to a service's admin API, and returns the answer. A refusal is an error in the service's words.
    pub(crate) async fn admin(&self, service: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let body = body.map(Value::to_string);
        let body = body.as_deref();
        let (status, answer) = match &self.access {
            Access::Local(_) | Access::Remote(_) => {
                let addresses = self.addresses()?;
                let url = format!("{}{path}", addresses.admin_url(service));
                http::admin_request(&url, &addresses.admin_token, body).await?
            }
            Access::Containers(compose) => compose.request(service, path, body).await?,
            Access::Network(_) => bail!(
                "the admin API of {service} listens inside its own container only: docker compose exec {service} {service} \
                 get '{path}'"
            ),
        };
        let answer: Value = serde_json::from_str(&answer)
            .with_context(|| format!("{service} answered {status} with a body that is not JSON"))?;
        if status == 200 {
            return Ok(answer);
        }
        let field = |key: &str| answer[key].as_str().unwrap_or_default().to_owned();
        bail!("{service} answered {status}: {}. {}", field("title"), field("detail"))
    }

    /// Stops what this command started, and repairs what it broke.
    pub(crate) async fn stop(self, terminal: &Terminal) -> Result<()> {
        if !self.started_here {
            return self.repair().await;
        }
        terminal.print("Stopping the system …");
        match self.access {
            Access::Local(system) => system.stop().await,
            Access::Containers(compose) => compose.down(true).await,
            Access::Remote(_) | Access::Network(_) => Ok(()),
        }
    }
}
