//! The whole system as processes of ours: two servers and three services, on free ports, gone when we are.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use sqlx::{Connection as _, PgConnection};
use testbed::{DatabaseUrls, Home, Passwords, Postgres, Rabbitmq, System, SystemOptions};
use uuid::Uuid;

use crate::paths;
use crate::target::{Target, Verb};
use crate::terminal::Terminal;
use crate::variant::Variant;

/// From the last server's start to a system that takes orders and applies them.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// The port that every example in the documentation uses.
const USUAL_PORT: u16 = 8080;

#[derive(Debug)]
pub(crate) struct LocalShop {
    // The services first: they are dropped, and so killed, before what they depend on.
    pub(crate) system: System,
    pub(crate) rabbitmq: Rabbitmq,
    pub(crate) postgres: Postgres,
    pub(crate) urls: DatabaseUrls,
    pub(crate) variant: Option<Variant>,
}

impl LocalShop {
    /// With servers from `home`. With a variant, that is what takes the orders.
    pub(crate) async fn start(terminal: &Terminal, home: Home, variant: Option<Variant>) -> Result<Self> {
        terminal.say("Building the services (the first time takes some minutes) …");
        match variant {
            Some(_) => testbed::build_variants(!terminal.json()).await?,
            None => testbed::build_services(!terminal.json()).await?,
        }
        let place = match home {
            Home::Local => "from this machine's binaries",
            Home::Docker => "in containers",
        };
        terminal.say(format!("Starting PostgreSQL and RabbitMQ {place}, and the three services …"));
        let started = tokio::try_join!(Postgres::private_in(home), Rabbitmq::private_in(home));
        let (postgres, rabbitmq) = started?;

        let mut admin = PgConnection::connect(&postgres.admin_url("postgres")).await?;
        sqlx::raw_sql("create database shop").execute(&mut admin).await?;
        admin.close().await?;
        let admin_url = postgres.admin_url("shop");
        let passwords = Passwords::all(&Uuid::new_v4().simple().to_string());
        testbed::bootstrap(&admin_url, &passwords).await?;
        let urls = DatabaseUrls::new(&admin_url, &passwords)?;

        let mut options = SystemOptions::new(urls.clone(), rabbitmq.url());
        // A variant stays out of the way: the real system may be running as well.
        if variant.is_none() {
            options.orders_port = if testbed::is_free(USUAL_PORT) { USUAL_PORT } else { 0 };
            // Of an earlier run, with other ports and ids.
            let _ = std::fs::remove_dir_all(paths::logs());
            options.log_dir = Some(paths::logs());
        }
        options.variant = variant.map(Variant::name);
        let system = System::start(options).await?;
        system.wait_ready(READY_WITHIN).await?;
        Ok(Self { system, rabbitmq, postgres, urls, variant })
    }

    pub(crate) async fn act(&self, verb: Verb, target: &Target) -> Result<()> {
        match (target, verb) {
            (Target::Broker, Verb::Kill) => self.rabbitmq.kill().await,
            (Target::Broker, Verb::Start) => self.rabbitmq.start().await,
            (Target::Broker, Verb::Pause) => self.rabbitmq.pause().await,
            (Target::Broker, Verb::Resume) => self.rabbitmq.resume().await,
            (Target::Database, Verb::Kill) => self.postgres.kill().await,
            (Target::Database, Verb::Start) => self.postgres.start().await,
            (Target::Database, Verb::Pause) => self.postgres.pause().await,
            (Target::Database, Verb::Resume) => self.postgres.resume().await,
            (Target::Service(name), Verb::Kill) => self.system.kill(name).await,
            (Target::Service(name), Verb::Start) => self.system.start_again(name).await,
            (Target::Service(name), Verb::Pause) => self.system.pause(name),
            (Target::Service(name), Verb::Resume) => self.system.resume(name),
        }
    }

    pub(crate) async fn pid(&self, target: &Target) -> Option<u32> {
        match target {
            Target::Broker => self.rabbitmq.pid().await,
            Target::Database => self.postgres.pid().await,
            Target::Service(name) => self.system.pid(name),
        }
    }

    /// An error with the service's name if one has died that nobody killed.
    pub(crate) fn check_alive(&self) -> Result<()> {
        for name in self.system.names() {
            if self.system.pid(name).is_none() {
                let log = self.system.logs().join(format!("{name}.log"));
                bail!("{name} has ended by itself; its log is {}", log.display());
            }
        }
        Ok(())
    }

    /// In order: the services finish what they have in hand, then the servers go.
    pub(crate) async fn stop(self) -> Result<()> {
        self.system.stop().await.context("the services did not stop as they should")
    }
}
