//! The whole system as child processes on free ports: PostgreSQL, RabbitMQ, the services and the payment provider.
//!
//! They are killed when this process ends.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use testbed::{
    DatabaseUrls, Home, Instances, Passwords, RabbitmqCluster, Server, Setup, System, SystemOptions, sql,
};

use crate::alteration::Alteration;
use crate::choice::Choice;
use crate::databases::Databases;
use crate::own_system::{OwnSystem, Tools};
use crate::part::{Action, DATABASE, NODES};
use crate::paths;
use crate::state::{Addresses, AdminUrls};
use crate::terminal::Terminal;

/// How long the services may take until they accept and apply orders.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// The port that the examples in the documentation use.
const DOCUMENTED_PORT: u16 = 8080;

/// The settings of the relays in this process's environment: `ORDERS_RELAY=log cargo demo`. Other settings of services are not
/// taken from there, but from `--set`.
fn relays_of_the_environment() -> Vec<(String, String)> {
    let set = |name: &str| Some((name.to_owned(), std::env::var(name).ok()?));
    ["ORDERS_RELAY", "INVENTORY_RELAY", "BILLING_RELAY"].into_iter().filter_map(set).collect()
}

/// Whether with this setting a service needs a server whose log can be decoded.
fn reads_the_log((name, value): &(String, String)) -> bool {
    name.ends_with("_RELAY") && value == "log"
}

#[derive(Debug)]
pub(crate) struct LocalSystem {
    // First, because fields are dropped in this order: the processes are killed before the servers that they use.
    pub(crate) processes: System,
    pub(crate) rabbitmq: RabbitmqCluster,
    pub(crate) databases: Databases,
    urls: DatabaseUrls,
    /// How it differs from the services as they are.
    pub(crate) alteration: Alteration,
    /// Only in a drill's own system.
    tools: Option<Tools>,
}

impl LocalSystem {
    /// Builds the services and starts everything, with servers where `home` says and so many nodes of RabbitMQ and instances
    /// of each service, and returns when it is ready. With `own`, a system for one drill: the one of `demo up` may be running
    /// as well, so it takes neither its port nor its directory of logs.
    pub(crate) async fn start(
        choice: Choice,
        home: Home,
        nodes: usize,
        instances: usize,
        own: Option<(OwnSystem, PathBuf)>,
        terminal: &Terminal,
    ) -> Result<Self> {
        terminal.print("Building the services (the first time takes some minutes) …");
        let build = async {
            match own {
                Some(_) => testbed::build_lab(!terminal.json()).await,
                None => testbed::build_services(!terminal.json()).await,
            }
        };
        // The servers are installed and started meanwhile.
        let ((), (postgres, rabbitmq)) =
            tokio::try_join!(build, choice.start_servers(home, nodes, terminal))?;
        terminal.print("Starting the three services …");

        let relays = relays_of_the_environment();
        let log_relay = relays.iter().any(reads_the_log)
            || own.as_ref().is_some_and(|(own, _)| own.setup.settings.iter().any(reads_the_log));
        if log_relay {
            postgres.set(&[("wal_level", "logical")]).await?;
        }
        let databases = match own.as_ref().and_then(|(own, _)| own.standby) {
            Some(replication) => Databases::with_standby(postgres, replication).await?,
            None => Databases::one(postgres),
        };
        sql::execute(&databases.admin_url("postgres"), "create database shop", READY_DEADLINE).await?;
        let admin_url = databases.admin_url("shop");
        let passwords = Passwords::random();
        testbed::bootstrap(&admin_url, &passwords).await?;
        if log_relay {
            testbed::allow_log_relay(&admin_url).await?;
        }
        let urls = DatabaseUrls::new(&admin_url, &passwords)?;

        let mut options = SystemOptions::new(urls.clone(), rabbitmq.url(), Setup::default());
        let alteration = own.as_ref().map_or(Alteration::None, |(own, _)| own.alteration.clone());
        let logs = own.as_ref().map_or_else(paths::logs, |(_, logs)| logs.clone());
        // The logs of an earlier run name other ports and process ids.
        let _ = std::fs::remove_dir_all(&logs);
        options.log_dir = Some(logs);
        let tools = match own {
            Some((own, _)) => {
                let tools = own.prepare(&mut options, &urls, &rabbitmq).await?;
                // After the addresses of the proxies, so these win.
                options.setup.settings.extend(databases.settings(&urls));
                Some(tools)
            }
            None => {
                options.setup.instances =
                    Instances { orders: instances, inventory: instances, billing: instances };
                options.orders_port = if testbed::is_free(DOCUMENTED_PORT) { DOCUMENTED_PORT } else { 0 };
                None
            }
        };
        // Before the settings of a drill, so those win.
        options.setup.settings.splice(..0, relays);
        let processes = System::start(options).await?;
        processes.wait_ready(READY_DEADLINE).await?;
        Ok(Self { processes, rabbitmq, databases, urls, alteration, tools })
    }

    pub(crate) fn addresses(&self) -> Result<Addresses> {
        let url = |service| self.processes.url(service).map(str::to_owned);
        // A variant serves no admin API.
        let admin_url = |service| self.processes.admin_url(service).unwrap_or_default().to_owned();
        Ok(Addresses {
            orders_url: self.processes.orders_url(),
            inventory_url: url("inventory")?,
            billing_url: url("billing")?,
            provider_url: url("provider")?,
            auditor_url: self.urls.auditor.clone(),
            admin_url: self.databases.admin_url("shop"),
            databases: [
                ("orders", &self.urls.orders),
                ("inventory", &self.urls.inventory),
                ("billing", &self.urls.billing),
                ("provider", &self.urls.provider),
            ]
            .map(|(login, url)| (login.to_owned(), url.clone()))
            .into(),
            amqp_url: self.rabbitmq.url(),
            rabbitmq_api: self.rabbitmq.first().api_url(),
            admin: AdminUrls {
                orders: admin_url("orders"),
                inventory: admin_url("inventory"),
                billing: admin_url("billing"),
            },
            admin_token: self.processes.admin_token().to_owned(),
        })
    }

    /// The order service's database, with its login.
    pub(crate) fn orders_database(&self) -> &str {
        &self.urls.orders
    }

    /// What breaks a drill's own system.
    pub(crate) fn tools(&self) -> Result<&Tools> {
        self.tools.as_ref().context("only a drill's own system has proxies")
    }

    pub(crate) async fn act(&self, action: Action, part: &str) -> Result<()> {
        match (self.server(part)?, action) {
            (Some(server), Action::Kill) => server.kill().await,
            (Some(server), Action::Start) => server.start().await,
            (Some(server), Action::Pause) => server.pause().await,
            (Some(server), Action::Resume) => server.resume().await,
            (None, Action::Kill) => self.processes.kill(part).await,
            (None, Action::Start) => self.processes.start_again(part).await,
            (None, Action::Pause) => self.processes.pause(part),
            (None, Action::Resume) => self.processes.resume(part),
        }
    }

    /// The server that a part is. `None`: it is a process.
    fn server(&self, part: &str) -> Result<Option<&Server>> {
        if part == DATABASE {
            return Ok(Some(self.databases.primary()));
        }
        let Some(index) = NODES.iter().position(|node| *node == part) else { return Ok(None) };
        Ok(Some(self.rabbitmq.node(index + 1)?))
    }

    /// A part's process id, or `None` while it is down.
    pub(crate) async fn pid(&self, part: &str) -> Option<u32> {
        match self.server(part) {
            Ok(Some(server)) => server.pid().await,
            Ok(None) => self.processes.pid(part),
            Err(_) => None,
        }
    }

    /// Fails if a process is down. The error names it and its log.
    pub(crate) fn check_alive(&self) -> Result<()> {
        for name in self.processes.names() {
            if self.processes.pid(name).is_none() {
                let log = self.processes.logs().join(format!("{name}.log"));
                bail!("{name} is not running; its log is {}", log.display());
            }
        }
        Ok(())
    }

    /// Stops the services, which finish what they are doing. The servers are killed afterwards.
    pub(crate) async fn stop(self) -> Result<()> {
        self.processes.stop().await.context("the services did not stop in order")
    }
}
