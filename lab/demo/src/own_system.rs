//! A system that belongs to one drill: what it has that the system of `demo up` has not.

use anyhow::{Context as _, Result};
use fault_proxy::Proxy;
use testbed::{DatabaseUrls, RabbitmqCluster, SystemOptions};

use crate::alteration::Alteration;
use crate::databases::Replication;
use crate::lab::{CrashFile, Setup, route, through};
use crate::proxies::Proxies;

/// The services that reach their servers through proxies.
const SERVICES: [&str; 3] = ["orders", "inventory", "billing"];

/// How such a system is set up.
#[derive(Debug)]
pub(crate) struct OwnSystem {
    pub(crate) setup: Setup,
    /// How many nodes RabbitMQ has. The services reach a cluster without a proxy.
    pub(crate) nodes: usize,
    /// A service, a crash point and what happens there, such as `relay-confirmed:kill`: once, after [`CrashFile::arm`]. The
    /// lab programs run instead of the services.
    pub(crate) crash_point: Option<(&'static str, &'static str)>,
    /// Services whose clock is wrong, and by how much, such as `+1h`.
    pub(crate) clocks: &'static [(&'static str, &'static str)],
    /// Whether PostgreSQL has a standby. The services then know both servers, and no proxy is before these.
    pub(crate) standby: Option<Replication>,
    /// Whether its database is restored from a backup, with the programs of this machine's PostgreSQL.
    pub(crate) restores: bool,
    /// What differs from the services as they are.
    pub(crate) alteration: Alteration,
}

/// What a drill uses to break it.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) proxies: Proxies,
    pub(crate) crash: Option<CrashFile>,
}

impl Default for OwnSystem {
    fn default() -> Self {
        let (setup, alteration) = (Setup::default(), Alteration::default());
        Self { setup, nodes: 1, standby: None, crash_point: None, clocks: &[], restores: false, alteration }
    }
}

impl OwnSystem {
    /// The same, with a difference.
    pub(crate) fn altered(self, alteration: &Alteration) -> Self {
        Self { setup: alteration.apply(self.setup), alteration: alteration.clone(), ..self }
    }

    /// Lets the connections of the services go through a proxy, and applies the setup.
    pub(crate) async fn prepare(
        self,
        options: &mut SystemOptions,
        urls: &DatabaseUrls,
        rabbitmq: &RabbitmqCluster,
    ) -> Result<Tools> {
        let crash = self.crash_point.map(|_| CrashFile::new());
        let mut setup = self.setup;
        if let (Some((service, point)), Some(crash)) = (self.crash_point, &crash) {
            crash.disarm()?;
            setup = setup.crashing_in(service, point, crash.path());
        }
        let (mut connections, amqp_url) = (vec![], rabbitmq.url());
        for (service, database) in SERVICES.into_iter().zip([&urls.orders, &urls.inventory, &urls.billing]) {
            let prefix = service.to_uppercase();
            connections.push((
                format!("{service}-database"),
                format!("{prefix}_DATABASE_URL"),
                database.as_str(),
            ));
            if rabbitmq.count() == 1 {
                connections.push((format!("{service}-broker"), format!("{prefix}_AMQP_URL"), &amqp_url));
            }
        }
        let routes = connections.iter().map(|(name, _, url)| route(name, url)).collect::<Result<_>>()?;
        let proxy = Proxy::start(routes).await?;
        for (name, variable, url) in connections {
            setup.settings.push((variable, through(url, proxy.address(&name)?)?));
        }
        for (service, offset) in self.clocks {
            let library = testbed::find_faketime()?;
            for (name, value) in [
                ("LD_PRELOAD", library.to_string_lossy().as_ref()),
                ("FAKETIME", *offset),
                ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ] {
                setup.settings_of_service.push((service, (name.into(), value.into())));
            }
        }
        options.setup = setup;
        Ok(Tools { proxies: Proxies::Here(proxy), crash })
    }
}

impl Tools {
    /// The crash point's file.
    pub(crate) fn crash(&self) -> Result<&CrashFile> {
        self.crash.as_ref().context("the drill's system has no crash point")
    }
}
