//! How a system is set up that one command starts for itself.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use fault_proxy::{Proxy, Route};
use reqwest::Url;
use testbed::{DatabaseUrls, RabbitmqCluster, Setup};
use uuid::Uuid;

use crate::alteration::Alteration;
use crate::databases::Replication;
use crate::lab::{BrokerApi, CrashFile};
use crate::part::SERVICES;
use crate::paths;
use crate::proxies::Proxies;

/// How such a system is set up.
#[derive(Debug, Default)]
pub(crate) struct OwnSystem {
    pub(crate) setup: Setup,
    /// Whether people use it: it has the documented port and no proxies, and none of the lab programs.
    pub(crate) for_people: bool,
    /// Where its processes log. `None`: into a directory that is erased at the end.
    pub(crate) logs: Option<PathBuf>,
    /// Whether RabbitMQ has three nodes. The services reach a cluster without a proxy.
    pub(crate) cluster: bool,
    /// A service, a crash point and what happens there, such as `relay-confirmed:kill`: once, after [`CrashFile::arm`]. The
    /// lab programs run instead of the services.
    pub(crate) crash_point: Option<(&'static str, &'static str)>,
    /// Services whose clock is wrong, and by how much, such as `+1h`.
    pub(crate) clocks: &'static [(&'static str, &'static str)],
    /// Whether PostgreSQL has a standby. The services then know both servers, and no proxy is before these.
    pub(crate) standby: Option<Replication>,
    /// Whether each service has a user of the broker that is no administrator, as in Compose.
    pub(crate) broker_users: bool,
    /// Whether what the drill does to its servers needs their processes and files.
    pub(crate) needs_processes: bool,
    /// What differs from the services as they are.
    pub(crate) alteration: Alteration,
}

impl From<Setup> for OwnSystem {
    fn from(setup: Setup) -> Self {
        Self { setup, ..Self::default() }
    }
}

impl OwnSystem {
    /// The system of `demo up`, with so many instances of each service.
    pub(crate) fn for_people(instances: usize) -> Self {
        let setup = Setup::default().with_instances(instances, instances, instances);
        Self { for_people: true, logs: Some(paths::logs()), ..setup.into() }
    }

    /// The same, with a difference.
    pub(crate) fn altered(self, alteration: &Alteration) -> Self {
        Self { setup: alteration.apply(self.setup), alteration: alteration.clone(), ..self }
    }

    /// Lets the connections of the services go through a proxy. Returns it, and adds the settings.
    pub(crate) async fn start_proxies(
        &mut self,
        urls: &DatabaseUrls,
        rabbitmq: &RabbitmqCluster,
    ) -> Result<Proxies> {
        let (mut connections, amqp_url) = (vec![], rabbitmq.url());
        for service in SERVICES {
            let prefix = service.to_uppercase();
            let database = (format!("{prefix}_DATABASE_URL"), urls.of(service));
            connections.push((format!("{service}-database"), database));
            if rabbitmq.count() == 1 {
                let mut amqp_url = amqp_url.clone();
                if self.broker_users {
                    let password = Uuid::new_v4().simple().to_string();
                    BrokerApi::new(rabbitmq.first().api_url(), "shop")?.set_user(service, &password).await?;
                    amqp_url = with_login(&amqp_url, service, &password)?;
                }
                let broker = (format!("{prefix}_AMQP_URL"), amqp_url);
                connections.push((format!("{service}-broker"), broker));
            }
        }
        let routes = connections.iter().map(|(route, (_, url))| Ok(Route::to(route, url)?));
        let proxy = Proxy::start(routes.collect::<Result<_>>()?).await?;
        for (route, (variable, url)) in connections {
            self.setup.settings.push((variable, proxy.through(&route, &url)?));
        }
        Ok(Proxies::Here(proxy))
    }

    /// Lets a process crash at the crash point, if there is one. Returns its file, which is not armed yet.
    pub(crate) fn prepare_crash(&mut self) -> Result<Option<CrashFile>> {
        let Some((service, point)) = self.crash_point else { return Ok(None) };
        let crash = CrashFile::new();
        crash.disarm()?;
        self.setup = std::mem::take(&mut self.setup).crashing_in(service, point, crash.path());
        Ok(Some(crash))
    }

    /// Lets clocks be wrong.
    pub(crate) fn set_clocks(&mut self) -> Result<()> {
        for (service, offset) in self.clocks {
            let library = testbed::find_faketime()?;
            for (name, value) in [
                ("LD_PRELOAD", library.to_string_lossy().as_ref()),
                ("FAKETIME", *offset),
                ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ] {
                self.setup.settings_of_service.push((service, (name.into(), value.into())));
            }
        }
        Ok(())
    }
}

/// A URL with another login.
pub(crate) fn with_login(url: &str, user: &str, password: &str) -> Result<String> {
    let mut url = Url::parse(url)?;
    let set = url.set_username(user).and_then(|()| url.set_password(Some(password)));
    set.ok().context("the URL has no host")?;
    Ok(url.into())
}
