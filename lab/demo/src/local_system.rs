//! The whole system as child processes on free ports: PostgreSQL, RabbitMQ, the services and the payment provider.
//!
//! They are killed when this process ends.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use flaws::LeftOut;
use testbed::{
    DatabaseUrls, Postgres, RabbitmqCluster, Server, Setup, System, SystemOptions, TestDatabase, TestVhost,
    sql,
};
use uuid::Uuid;

use crate::alteration::Alteration;
use crate::databases::Databases;
use crate::lab::CrashFile;
use crate::own_system::OwnSystem;
use crate::part::{Action, DATABASE, NODES, SERVICES};
use crate::proxies::Proxies;
use crate::state::Addresses;
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
    servers: Servers,
    urls: DatabaseUrls,
    /// How it differs from the services as they are.
    pub(crate) alteration: Alteration,
    /// Between the services and their servers: of a separate system.
    pub(crate) proxies: Option<Proxies>,
    /// The file of its crash point.
    pub(crate) crash: Option<CrashFile>,
}

/// The servers of a system.
#[derive(Debug)]
enum Servers {
    /// They belong to it alone.
    Private { rabbitmq: RabbitmqCluster, databases: Databases },
    /// A database and a virtual host on servers that tests share.
    Shared { database: TestDatabase, vhost: TestVhost },
}

/// A system with servers that belong to it alone.
#[derive(Clone, Copy, Debug)]
pub struct Own<'a> {
    pub processes: &'a System,
    pub rabbitmq: &'a RabbitmqCluster,
    pub(crate) databases: &'a Databases,
}

impl LocalSystem {
    /// Builds the services and starts everything on new servers, and returns when it is ready.
    pub(crate) async fn start(
        servers: impl Future<Output = Result<(Postgres, RabbitmqCluster)>>,
        mut own: OwnSystem,
        terminal: &Terminal,
    ) -> Result<Self> {
        terminal.print("Building the services (the first time takes some minutes) …");
        let for_people = own.for_people;
        let build = async {
            if for_people {
                testbed::build_services(!terminal.json()).await
            } else {
                testbed::build_lab(!terminal.json()).await
            }
        };
        // The servers are installed and started meanwhile.
        let ((), (postgres, rabbitmq)) = tokio::try_join!(build, servers)?;
        terminal.print("Starting the three services …");

        let relays = relays_of_the_environment();
        let log_relay = relays.iter().chain(&own.setup.settings).any(reads_the_log);
        if log_relay {
            postgres.set(&[("wal_level", "logical")]).await?;
        }
        if let Alteration::Flaw(flaw) = &own.alteration {
            match flaw.row().left_out {
                LeftOut::Database(settings) => postgres.set(settings).await?,
                LeftOut::Broker(config) => rabbitmq.first().configure(config).await?,
                _ => {}
            }
        }
        let databases = match own.standby {
            Some(replication) => Databases::with_standby(postgres, replication).await?,
            None => Databases::one(postgres),
        };
        sql::execute(&databases.admin_url("postgres")?, "create database shop", READY_DEADLINE).await?;
        let admin_url = databases.admin_url("shop")?;
        // Other users of this machine cannot guess them.
        let urls = DatabaseUrls::new(&admin_url, |_| Ok(Uuid::new_v4().simple().to_string()))?;
        testbed::bootstrap(&urls).await?;
        if log_relay {
            testbed::allow_log_relay(&admin_url).await?;
        }

        let (mut proxies, crash) = (None, own.prepare_crash()?);
        if !for_people {
            proxies = Some(own.start_proxies(&urls, &rabbitmq).await?);
        }
        own.set_clocks()?;
        let OwnSystem { mut setup, logs, alteration, .. } = own;
        // After the addresses of the proxies, so these win.
        setup.settings.extend(databases.settings(&urls)?);
        // Before the settings of a drill, so those win.
        setup.settings.splice(..0, relays);
        let mut options = SystemOptions::new(urls.clone(), rabbitmq.url(), setup);
        if for_people && testbed::is_free(DOCUMENTED_PORT) {
            options.orders_port = DOCUMENTED_PORT;
        }
        if let Some(logs) = &logs {
            // Logs of an earlier run name other ports and process ids.
            let _ = std::fs::remove_dir_all(logs);
        }
        options.log_dir = logs;
        let servers = Servers::Private { rabbitmq, databases };
        Self::run(options, servers, alteration, proxies, crash).await
    }

    /// Starts the services on a new database and a new virtual host of the servers that tests share.
    pub(crate) async fn start_shared(database: TestDatabase, setup: Setup) -> Result<Self> {
        let vhost = testbed::vhost().await?;
        let alteration = Alteration::of(&setup);
        let options = SystemOptions::new(database.urls().clone(), vhost.url(), setup);
        Self::run(options, Servers::Shared { database, vhost }, alteration, None, None).await
    }

    async fn run(
        options: SystemOptions,
        servers: Servers,
        alteration: Alteration,
        proxies: Option<Proxies>,
        crash: Option<CrashFile>,
    ) -> Result<Self> {
        let urls = options.database.clone();
        let processes = System::start(options).await?;
        processes.wait_ready(READY_DEADLINE).await?;
        Ok(Self { processes, servers, urls, alteration, proxies, crash })
    }

    pub(crate) fn addresses(&self) -> Result<Addresses> {
        let url = |service| self.processes.url(service).map(str::to_owned);
        let (database_url, amqp_url, rabbitmq_api) = match &self.servers {
            Servers::Private { rabbitmq, databases } => {
                (databases.admin_url("shop")?, rabbitmq.url(), rabbitmq.first().api_url())
            }
            Servers::Shared { database, vhost } => {
                (database.admin_url(), vhost.url(), vhost.api_url().to_owned())
            }
        };
        Ok(Addresses {
            orders_url: self.processes.orders_url(),
            inventory_url: url("inventory")?,
            billing_url: url("billing")?,
            provider_url: url("provider")?,
            auditor_url: self.urls.of("auditor"),
            admin_url: database_url,
            databases: ["orders", "inventory", "billing", "provider"]
                .map(|login| (login.to_owned(), self.urls.of(login)))
                .into(),
            amqp_url,
            rabbitmq_api,
            admin: SERVICES
                .into_iter()
                // A variant serves no admin API.
                .filter_map(|name| Some((name.to_owned(), self.processes.admin_url(name).ok()?.to_owned())))
                .collect(),
            admin_token: self.processes.admin_token().to_owned(),
        })
    }

    /// Its processes and servers, if no other system uses these servers.
    pub(crate) fn own(&self) -> Result<Own<'_>> {
        match &self.servers {
            Servers::Private { rabbitmq, databases } => {
                Ok(Own { processes: &self.processes, rabbitmq, databases })
            }
            Servers::Shared { .. } => bail!("other tests use the same servers"),
        }
    }

    /// The virtual host of its queues.
    pub(crate) fn vhost(&self) -> &str {
        match &self.servers {
            Servers::Private { .. } => "shop",
            Servers::Shared { vhost, .. } => vhost.name(),
        }
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
            return Ok(Some(self.own()?.databases.primary()));
        }
        let Some(index) = NODES.iter().position(|node| *node == part) else { return Ok(None) };
        Ok(Some(self.own()?.rabbitmq.node(index + 1)?))
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
