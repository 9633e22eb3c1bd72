//! The PostgreSQL servers of a system: one, or a primary and a standby that can take its place.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use fault_proxy::{Direction, Effect, Fault, MAX_FAULT_DURATION, Proxy, Route};
use testbed::{DatabaseUrls, Postgres, eventually, set_standby};

/// How long a server may take to answer an administrator, and a standby to have everything that its primary has.
const DEADLINE: Duration = Duration::from_secs(60);

/// The routes of a pair, both to the primary: how the standby follows it, and the way for all that is not ours, which is the
/// administrator, the auditor, and the payment provider.
const LINK: &str = "link";
const ENTRANCE: &str = "entrance";

/// Whether a commit waits for the standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replication {
    Synchronous,
    Asynchronous,
}

/// One server, or two of which one accepts writes.
#[derive(Debug)]
pub(crate) struct Databases {
    servers: Vec<Postgres>,
    primary: AtomicUsize,
    /// Only two servers have [`LINK`] and [`ENTRANCE`].
    pair: Option<Proxy>,
}

impl Databases {
    pub(crate) fn one(server: Postgres) -> Self {
        Self { servers: vec![server], primary: AtomicUsize::new(0), pair: None }
    }

    /// Starts a standby of a server.
    pub(crate) async fn with_standby(primary: Postgres, replication: Replication) -> Result<Self> {
        let routes = [LINK, ENTRANCE].map(|name| Route::new(name, address(&primary)));
        let pair = Proxy::start(routes.into()).await?;
        let standby = primary.standby(pair.address(LINK)?.port()).await?;
        let servers = vec![primary, standby];
        let databases = Self { servers, primary: AtomicUsize::new(0), pair: Some(pair) };
        databases.await_standby().await?;
        if replication == Replication::Synchronous {
            databases.wait_for_standby(true).await?;
        }
        Ok(databases)
    }

    /// The server that accepts writes.
    pub(crate) fn primary(&self) -> &Postgres {
        &self.servers[self.primary.load(Ordering::Relaxed)]
    }

    /// The server that follows it.
    pub(crate) fn standby(&self) -> Result<&Postgres> {
        let standby = self.servers.get(1 - self.primary.load(Ordering::Relaxed));
        standby.filter(|_| self.pair.is_some()).context("the drill's system has no standby")
    }

    /// The administrator's URL, which leads to the primary.
    pub(crate) fn admin_url(&self, database: &str) -> Result<String> {
        let url = self.servers[0].admin_url(database);
        self.pair.as_ref().map_or(Ok(url.clone()), |pair| Ok(pair.through(ENTRANCE, &url)?))
    }

    /// The settings with which the services know both servers: of two, each URL names them in this order.
    pub(crate) fn settings(&self, urls: &DatabaseUrls) -> Result<Vec<(String, String)>> {
        let Some(pair) = &self.pair else { return Ok(vec![]) };
        let entrance = pair.address(ENTRANCE)?.to_string();
        let hosts: Vec<_> = self.servers.iter().map(address).collect();
        let setting = |service: &str| {
            let name = format!("{}_DATABASE_URL", service.to_uppercase());
            (name, urls.of(service).replace(&entrance, &hosts.join(",")))
        };
        Ok(["orders", "inventory", "billing"].map(setting).into())
    }

    /// Makes the standby the primary. Whether the old one still runs is not looked at.
    pub(crate) async fn promote(&self) -> Result<()> {
        let standby = self.standby()?;
        self.execute_at(standby, "select pg_promote(true, 60)").await?;
        self.primary.fetch_xor(1, Ordering::Relaxed);
        for route in [LINK, ENTRANCE] {
            self.pair()?.redirect(route, address(self.primary())).await?;
        }
        Ok(())
    }

    /// Lets every commit wait for the standby, or none. Both servers get the setting, as from one configuration: the standby
    /// inherits it when it is promoted.
    pub(crate) async fn wait_for_standby(&self, wait: bool) -> Result<()> {
        if !wait {
            return set_standby(&self.primary().admin_url("postgres"), "= ''").await;
        }
        let value = format!("= 'ANY 1 ({})'", self.standby()?.standby_name());
        for server in &self.servers {
            set_standby(&server.admin_url("postgres"), &value).await?;
        }
        // The server obeys the setting some moment after it was changed.
        self.eventually(
            "the standby to be synchronous",
            "select exists (select from pg_stat_replication where sync_state = 'quorum')::text",
        )
        .await
    }

    /// Throws the files of the server away that is not the primary, and lets it follow the primary as a new standby.
    pub(crate) async fn renew_standby(&self) -> Result<()> {
        let link = self.pair()?.address(LINK)?;
        self.standby()?.follow(self.primary(), link.port()).await?;
        self.await_standby().await
    }

    /// Cuts the standby off. What it has not received yet it will not receive.
    pub(crate) fn cut_link(&self) -> Result<()> {
        let cut = Fault::new(Effect::Cut, Direction::Both, MAX_FAULT_DURATION);
        Ok(self.pair()?.set(LINK, cut)?)
    }

    pub(crate) fn restore_link(&self) -> Result<()> {
        Ok(self.pair()?.clear(LINK)?)
    }

    /// Executes statements at a server, as its administrator.
    pub(crate) async fn execute_at(&self, server: &Postgres, sql: &str) -> Result<()> {
        testbed::sql::execute(&server.admin_url("postgres"), sql, DEADLINE).await
    }

    /// Runs a query that returns one text at a server, as its administrator.
    pub(crate) async fn read_at(&self, server: &Postgres, query: &str) -> Result<String> {
        testbed::sql::read(&server.admin_url("postgres"), query, DEADLINE).await
    }

    /// Waits until the standby has caught up with the primary, and follows it.
    async fn await_standby(&self) -> Result<()> {
        let follows = "select exists (select from pg_stat_replication where state = 'streaming')::text";
        self.eventually("the standby to follow", follows).await
    }

    async fn eventually(&self, what: &str, condition: &str) -> Result<()> {
        eventually(what, DEADLINE, async || {
            Ok((self.read_at(self.primary(), condition).await? == "true").then_some(()))
        })
        .await
    }

    fn pair(&self) -> Result<&Proxy> {
        self.pair.as_ref().context("the drill's system has no standby")
    }
}

fn address(server: &Postgres) -> String {
    format!("127.0.0.1:{}", server.port())
}
