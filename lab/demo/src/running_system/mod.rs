//! The running system, in processes or in containers: what commands, drills and tests read from it and do to it.

mod client;
mod start;
mod transit;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use flaws::{Flaw, LeftOut};
use serde_json::Value;
use sqlx::{Connection as _, PgConnection};
use testbed::{System, sql};
use tokio::time::timeout;
use uuid::Uuid;

use crate::alteration::Alteration;
use crate::compose::Compose;
use crate::control::Control;
use crate::http;
use crate::lab::{BrokerApi, CrashFile};
use crate::ledger::Ledger;
use crate::local_system::{LocalSystem, Own};
use crate::metrics;
use crate::network_system::{self, NetworkSystem};
use crate::part::{Action, ActiveFaults};
use crate::paths;
use crate::proxies::Proxies;
use crate::reconciliation::{self, DuplicatesDropped, Reconciliation, Settled, Wait, settle};
use crate::state::Addresses;
use crate::terminal::Terminal;
use client::Clients;

const QUERY_DEADLINE: Duration = Duration::from_secs(20);

/// A handle to a running system, started here or by another process.
#[derive(Debug)]
pub struct RunningSystem {
    orders_url: String,
    access: Access,
    /// `None`: its parts have no address outside of their network.
    addresses: Option<Addresses>,
    faults: Mutex<ActiveFaults>,
    /// Whether this command started the system, and so has to stop it.
    started_here: bool,
    /// What was answered to the clients in this process, for those who keep no ledger.
    clients: Arc<Mutex<Clients>>,
}

#[derive(Debug)]
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
#[derive(Debug)]
struct Remote {
    acting: Control,
    asking: Control,
}

impl RunningSystem {
    /// The proxies between the services and their servers.
    pub(crate) fn proxies(&self) -> Result<&Proxies> {
        let proxies = match &self.access {
            Access::Local(system) => system.proxies.as_ref(),
            Access::Network(system) => system.proxies.as_ref(),
            Access::Remote(_) | Access::Containers(_) => None,
        };
        proxies.context("the running system has no fault proxy")
    }

    /// The processes and servers of a system that this command has started on servers that no other uses.
    pub fn own(&self) -> Result<Own<'_>> {
        self.local_system()?.own()
    }

    /// The processes of a system that this command has started.
    pub fn processes(&self) -> Result<&System> {
        Ok(&self.local_system()?.processes)
    }

    /// The file of its crash point.
    pub(crate) fn crash(&self) -> Result<&CrashFile> {
        self.local_system()?.crash.as_ref().context("the drill's system has no crash point")
    }

    fn local_system(&self) -> Result<&LocalSystem> {
        match &self.access {
            Access::Local(system) => Ok(system),
            _ => bail!("a separate system is needed"),
        }
    }

    /// How it differs from the services as they are.
    pub(crate) fn alteration(&self) -> &Alteration {
        self.local_system().map_or(&Alteration::None, |system| &system.alteration)
    }

    /// The protection that is left out, if there is one.
    pub(crate) fn variant(&self) -> Option<Flaw> {
        match self.alteration() {
            Alteration::Flaw(flaw) => Some(*flaw),
            _ => None,
        }
    }

    /// Whether this command has started it.
    pub(crate) fn started_here(&self) -> bool {
        self.started_here
    }

    /// The URL of the order API, without a trailing slash.
    pub fn orders_url(&self) -> &str {
        &self.orders_url
    }

    /// The URLs of all order services, of which a system that this command has started may have several. A variant cancels no
    /// order, so there is none.
    pub(crate) fn order_services(&self) -> Vec<String> {
        if self.variant().is_some_and(|flaw| flaw.row().left_out == LeftOut::Variant) {
            return vec![];
        }
        let instances = self.processes().map(|processes| {
            let names = processes.names().filter(|name| name.starts_with("orders"));
            names.filter_map(|name| processes.url(name).ok()).map(str::to_owned).collect()
        });
        instances.unwrap_or_else(|_| vec![self.orders_url.clone()])
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
    pub async fn read(&self, query: &str) -> Result<String> {
        if let Access::Containers(compose) = &self.access {
            return compose.sql("auditor", query).await;
        }
        sql::read(&self.addresses()?.auditor_url, query, QUERY_DEADLINE).await
    }

    /// Runs statements with the login of a service, or of the payment provider: it owns its tables, so what it has put there, such
    /// as a trigger, runs with the rights of whoever writes. As an administrator, that would be every right.
    pub async fn execute_as(&self, service: &str, statements: &str) -> Result<()> {
        if let Access::Containers(compose) = &self.access {
            return compose.sql(service, statements).await.map(drop);
        }
        let url = self.addresses()?.databases.get(service);
        let url = url.with_context(|| format!("the login {service} is not known here"))?;
        sql::execute(url, statements, QUERY_DEADLINE).await
    }

    /// Runs a query that returns one number as text.
    pub async fn number<T: FromStr>(&self, query: &str) -> Result<T>
    where
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        let value = self.read(query).await?;
        value.trim().parse().with_context(|| format!("`{value}` is not a number"))
    }

    /// Opens a session with a login: `orders`, `inventory`, `billing`, `provider`, or `admin` for the superuser.
    pub async fn connect(&self, login: &str) -> Result<PgConnection> {
        let addresses = self.addresses()?;
        let url = match login {
            "admin" => &addresses.admin_url,
            login => addresses.databases.get(login).context("there is no such login")?,
        };
        PgConnection::connect(url).await.with_context(|| format!("failed to connect as {login}"))
    }

    /// Access to its broker as an operator.
    pub fn broker_api(&self) -> Result<BrokerApi> {
        BrokerApi::new(&self.addresses()?.rabbitmq_api, self.vhost())
    }

    /// The virtual host of its queues.
    pub(crate) fn vhost(&self) -> &str {
        self.local_system().map_or("shop", LocalSystem::vhost)
    }

    /// Reconciles the records with the acknowledged orders.
    pub async fn reconcile(&self, acknowledged: &[Uuid]) -> Result<Reconciliation> {
        let query = reconciliation::query(acknowledged, self.variant());
        Reconciliation::parse(&self.read(&query).await?)
    }

    /// The file of the acknowledgements for this system's orders.
    pub(crate) async fn ledger_path(&self) -> Result<PathBuf> {
        let identity = self.read("select system_identifier::text from pg_control_system()").await?;
        Ok(paths::ledger(&identity))
    }

    /// The acknowledgements of this system's orders, open for writing.
    pub(crate) async fn ledger(&self) -> Result<Arc<Ledger>> {
        Ok(Arc::new(Ledger::open(&self.ledger_path().await?)?))
    }

    /// How many of these orders are not cancelled, although their clients were told so.
    pub async fn lost_cancellations(&self, cancelled: &[Uuid]) -> Result<u64> {
        let ids: Vec<_> = cancelled.iter().map(Uuid::to_string).collect();
        let ids = ids.join(",");
        let there: u64 = self
            .number(&format!(
                "select count(*)::text from orders.orders where status = 'cancelled' and id = any('{{{ids}}}'::uuid[])"
            ))
            .await?;
        Ok((cancelled.len() as u64).saturating_sub(there))
    }

    /// Reconciles the records with a ledger again and again, until the wait ends.
    pub(crate) async fn settle(&self, wait: Wait, ledger: &Ledger) -> Result<Settled> {
        let read = async || self.reconcile(&ledger.acknowledged()?).await;
        settle(wait, read, async || self.transit().await).await
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

    /// Reads a metric of a process, added up over its labels.
    pub async fn metric(&self, service: &str, name: &str) -> Result<f64> {
        Ok(metrics::sum(&self.metrics(service).await?, name)?)
    }

    /// Reads a service's page of metrics.
    pub async fn metrics(&self, service: &str) -> Result<String> {
        if let Access::Containers(compose) = &self.access {
            return compose.metrics(service).await;
        }
        http::get(&format!("{}/metrics", self.url(service)?)).await
    }

    /// The URL at which a process answers, without a trailing slash.
    pub fn url(&self, process: &str) -> Result<&str> {
        match &self.access {
            Access::Local(system) => system.processes.url(process),
            _ => Ok(self.addresses()?.url(process)),
        }
    }

    /// Sends a request to a service's admin API, and returns the answer. A refusal is an error in the service's words.
    pub async fn admin(&self, service: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let body = body.map(Value::to_string);
        let body = body.as_deref();
        let (status, answer) = match &self.access {
            Access::Local(_) | Access::Remote(_) => {
                let addresses = self.addresses()?;
                let url = addresses.admin.get(service).context("it has no admin API")?;
                http::admin_request(&format!("{url}{path}"), &addresses.admin_token, body).await?
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
