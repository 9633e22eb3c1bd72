//! The whole system for one benchmark: private servers and all services on loopback, stopped when the benchmark ends.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};
use load_tests::{Answer, Client, Load, Saturation, Summary};
use sqlx::{Connection as _, PgConnection};
use testbed::{DatabaseUrls, Home, Postgres, Rabbitmq, System, SystemOptions, processor_time, sql};
use uuid::Uuid;

use crate::{
    machine::{busy_share, cores},
    report::{Report, Rounds},
};

/// The product's processes, by their names.
pub(crate) const SERVICES: [&str; 3] = ["orders", "inventory", "billing"];

/// The global flags of the command line.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setup {
    /// Settings of the services other than their defaults, as environment variables.
    pub(crate) settings: Vec<(String, String)>,
    /// Whether this run only shows that the benchmark works. Its figures mean nothing.
    pub(crate) smoke: bool,
}

impl Setup {
    /// Returns how long to go on where only the accuracy of a figure needs the time.
    pub(crate) fn pause(&self, full: Duration) -> Duration {
        if self.smoke { full / 20 } else { full }
    }
}

/// Servers and services that no other program uses.
pub(crate) struct Rig {
    // Fields are dropped in this order: the services before the servers that they are connected to.
    pub(crate) system: System,
    options: SystemOptions,
    pub(crate) rabbitmq: Rabbitmq,
    postgres: Postgres,
    standby: Option<Postgres>,
    /// Of the database, also where the services reach it through a forwarder.
    pub(crate) urls: DatabaseUrls,
    home: Home,
    setup: Setup,
    /// The other processes' share of the cores before anything was measured.
    busy_before: Option<f64>,
}

/// The system's database, with the name that the services' documentation gives it.
const DATABASE: &str = "shop";

/// A service starts in less than a second; its first build and other work on the machine may come on top.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// Both kinds of relay. PostgreSQL writes as much log with `wal_level = logical` for both.
pub(crate) const RELAYS: [&str; 2] = ["poll", "log"];

const WARM_UP: Duration = Duration::from_secs(3);
pub(crate) const WARM_UP_PER_SECOND: u32 = 100;

/// The pause after an order that was refused.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// What follows from the last order is done in this time, also of a backlog of thirty thousand.
const APPLIED_DEADLINE: Duration = Duration::from_secs(300);

/// Servers go on working for a moment after they report that they are ready.
const SETTLE: Duration = Duration::from_secs(2);

/// The name under which the time of this process is found.
pub(crate) const GENERATOR: &str = "load generator";

impl Rig {
    /// Starts servers and services, and waits until all of them are ready.
    pub(crate) async fn start(setup: &Setup) -> Result<Self> {
        Self::start_with(setup, async |_| Ok(())).await
    }

    /// Like [`start`](Self::start), but the services get options that `change` has changed. The rig's connections stay as
    /// they are.
    pub(crate) async fn start_with(
        setup: &Setup,
        change: impl AsyncFnOnce(&mut SystemOptions) -> Result<()>,
    ) -> Result<Self> {
        eprintln!("starting PostgreSQL, RabbitMQ and the services");
        let home = Home::choose().await?;
        let (postgres, rabbitmq) = tokio::try_join!(Postgres::private_in(home), Rabbitmq::private_in(home))?;
        let create = format!("create database {DATABASE}");
        testbed::sql::execute(&postgres.admin_url("postgres"), &create, READY_DEADLINE).await?;
        let urls = DatabaseUrls::new(&postgres.admin_url(DATABASE), |_| Ok("benchmark".to_owned()))?;
        testbed::bootstrap(&urls).await?;

        let system = testbed::Setup { settings: setup.settings.clone(), ..testbed::Setup::default() };
        let mut options = SystemOptions::new(urls.clone(), rabbitmq.url(), system);
        change(&mut options).await?;
        let system = System::start(options.clone()).await?;
        system.wait_ready(READY_DEADLINE).await?;
        tokio::time::sleep(setup.pause(SETTLE)).await;
        let busy_before = busy_share().await;
        let standby = None;
        Ok(Self {
            system,
            options,
            rabbitmq,
            postgres,
            standby,
            urls,
            home,
            setup: setup.clone(),
            busy_before,
        })
    }

    /// The database's URL with the superuser's login.
    pub(crate) fn admin_url(&self) -> String {
        self.postgres.admin_url(DATABASE)
    }

    /// Reads the processor time that each process has used so far, the servers with all their processes: the services, as far
    /// as they run, `PostgreSQL`, `RabbitMQ` and the [`GENERATOR`], without the servers that may be its descendants.
    pub(crate) async fn processor_times(&self) -> Result<BTreeMap<String, Duration>> {
        let services = self.system.names().map(|name| (name, self.system.pid(name)));
        let servers = [("PostgreSQL", self.postgres.pid().await), ("RabbitMQ", self.rabbitmq.pid().await)];
        let running = services.chain(servers).filter_map(|(name, pid)| Some((name, pid?)));
        let mut times = running
            .map(|(name, pid)| Ok((name.to_owned(), processor_time(pid)?)))
            .collect::<Result<BTreeMap<_, _>>>()?;
        times.insert(GENERATOR.to_owned(), testbed::own_processor_time());
        Ok(times)
    }

    /// Returns the milliseconds of processor time that each process has used since it was `before`.
    pub(crate) async fn milliseconds_since(
        &self,
        before: &BTreeMap<String, Duration>,
    ) -> Result<BTreeMap<String, f64>> {
        let now = self.processor_times().await?;
        let spent = now.into_iter().map(|(name, now)| {
            let spent = now.saturating_sub(before.get(&name).copied().unwrap_or_default());
            (name, spent.as_secs_f64() * 1e3)
        });
        Ok(spent.collect())
    }

    /// Sends SIGTERM to services and waits until they have ended. No figure depends on their exit codes, which their own
    /// tests check.
    pub(crate) async fn stop_services(&self, names: &[&str]) -> Result<()> {
        for name in names {
            self.system.terminate(name).await?;
        }
        Ok(())
    }

    /// Restarts PostgreSQL so that its log can be decoded, and gives the services the right to.
    pub(crate) async fn allow_log_relay(&self) -> Result<()> {
        self.postgres.set(&[("wal_level", "logical")]).await?;
        testbed::allow_log_relay(&self.admin_url()).await?;
        self.system.wait_ready(READY_DEADLINE).await
    }

    /// Restarts all services with this kind of relay, so many order services, and without a slot of an earlier relay.
    pub(crate) async fn use_relay(&mut self, kind: &str, orders: usize) -> Result<()> {
        self.system.stop().await?;
        for service in SERVICES {
            // The server ends the connection of a stopped relay soon afterwards.
            testbed::eventually("the slot to be dropped", READY_DEADLINE, async || {
                self.administer(&format!("select {service}.outbox_log_drop()")).await.map(Some)
            })
            .await?;
        }
        self.options.setup.instances.orders = orders;
        let settings = SERVICES.map(|service| (format!("{}_RELAY", service.to_uppercase()), kind.to_owned()));
        self.restart_services(settings.into()).await
    }

    /// Stops all services, and starts them again with further settings.
    pub(crate) async fn restart_services(&mut self, settings: Vec<(String, String)>) -> Result<()> {
        self.system.stop().await?;
        self.options.setup.settings.extend(settings);
        self.system = System::start(self.options.clone()).await?;
        self.system.wait_ready(READY_DEADLINE).await
    }

    /// Waits until an order service reads the write-ahead log.
    pub(crate) async fn log_is_read(&self) -> Result<()> {
        let mut admin = PgConnection::connect(&self.admin_url()).await?;
        testbed::eventually("the slot to be held", READY_DEADLINE, async || {
            let active = "select coalesce((select active from orders.outbox_log_state()), false)";
            let active: bool = sqlx::query_scalar(active).fetch_one(&mut admin).await?;
            Ok(active.then_some(()))
        })
        .await
    }

    /// Starts services again that were stopped or killed, and waits until all are ready.
    pub(crate) async fn start_again(&self, names: &[&str]) -> Result<()> {
        for name in names {
            self.system.start_again(name).await?;
        }
        self.system.wait_ready(READY_DEADLINE).await
    }

    /// Starts a standby, and lets every commit wait for it. Not in containers.
    pub(crate) async fn start_standby(&mut self) -> Result<()> {
        let standby = self.standby.insert(self.postgres.standby(self.postgres.port()).await?);
        let names = format!("= 'ANY 1 ({})'", standby.standby_name());
        testbed::set_standby(&self.postgres.admin_url("postgres"), &names).await
    }

    /// Restarts PostgreSQL with its statistics of statements. The services connect again.
    pub(crate) async fn count_statements(&self) -> Result<()> {
        self.postgres.set(&[("shared_preload_libraries", "pg_stat_statements")]).await?;
        self.administer("create extension pg_stat_statements").await?;
        self.administer("alter system set pg_stat_statements.track_planning = on").await?;
        self.administer("select pg_reload_conf()").await?;
        self.system.wait_ready(READY_DEADLINE).await
    }

    /// Runs a statement as the superuser.
    pub(crate) async fn administer(&self, statement: &str) -> Result<()> {
        sql::execute(&self.admin_url(), statement, READY_DEADLINE).await
    }

    /// Places one order of two lines, the mean of the generated orders, and returns its id.
    pub(crate) async fn place(&self) -> Result<Uuid> {
        self.place_at("orders").await
    }

    /// The same at one process of the order service.
    pub(crate) async fn place_at(&self, process: &str) -> Result<Uuid> {
        let order = serde_json::json!({
            "customerId": "0b5f3a54-6a0e-4d0c-9d52-3c1f8f1f2a11",
            "lines": [{ "sku": "TEA-001", "quantity": 2 }, { "sku": "MUG-001", "quantity": 1 }],
        });
        let client = Client::new(self.system.url(process)?)?;
        // A busy service may refuse it, or answer too late: then there is one more order, which no figure shows.
        testbed::eventually("an order to be accepted", APPLIED_DEADLINE, async || {
            match client.place(order.to_string()).await {
                Answer::Accepted(id) => Ok(Some(id)),
                refusal => {
                    tokio::time::sleep(RETRY_PAUSE).await;
                    anyhow::bail!("{refusal:?}")
                }
            }
        })
        .await
    }

    /// The first connections, plans and pages are no customer's latency, nor is the creation of a slot. A busy machine may refuse
    /// orders meanwhile.
    pub(crate) async fn warm_up(&self) -> Result<()> {
        eprintln!("warming up");
        let for_ = self.setup.pause(WARM_UP);
        load_tests::run(Load::new(self.system.orders_url(), WARM_UP_PER_SECOND, for_), |_| ()).await?;
        self.everything_applied().await
    }

    /// Places orders at a constant rate.
    ///
    /// # Errors
    /// When one was not accepted.
    pub(crate) async fn load(&self, rate: u32, for_: Duration) -> Result<Summary> {
        load_tests::run(Load::new(self.system.orders_url(), rate, for_), |_| ()).await?.all_accepted()
    }

    /// Places orders as fast as they are accepted, on so many connections.
    ///
    /// # Errors
    /// When one was not accepted.
    pub(crate) async fn saturate(&self, connections: u32, for_: Duration) -> Result<Summary> {
        let load = Saturation { url: self.system.orders_url(), connections, for_, seed: fastrand::u64(..) };
        load_tests::saturate(load, |_| ()).await?.all_accepted()
    }

    /// Waits until every order is confirmed or cancelled and nothing is pending: an order that is confirmed was applied by
    /// both services.
    ///
    /// # Errors
    /// When that has not happened at the deadline; names what is still pending.
    pub(crate) async fn everything_applied(&self) -> Result<()> {
        let mut database = PgConnection::connect(&self.urls.of("auditor")).await?;
        testbed::eventually("all orders to be confirmed or cancelled", APPLIED_DEADLINE, async || {
            let pending = sqlx::query_as(
                "select (select count(*) from orders.orders where status in ('pending', 'reserved', 'paid')),
                        (select count(*) from orders.outbox where published_at is null)
                      + (select count(*) from inventory.outbox where published_at is null)
                      + (select count(*) from billing.outbox where published_at is null)
                      + (select count(*) from billing.payments where state in ('asked', 'refunding'))",
            );
            let (orders, others): (i64, i64) = pending.fetch_one(&mut database).await?;
            if (orders, others) == (0, 0) {
                return Ok(Some(()));
            }
            // Not more often, because counting takes time on the cores that do the work.
            tokio::time::sleep(Duration::from_millis(200)).await;
            anyhow::bail!("{orders} orders are open, {others} events and payments are pending")
        })
        .await
    }

    /// Ends the benchmark with its figures: reads the conditions, and stops all services.
    pub(crate) async fn finish(self, benchmark: &str, rounds: Rounds, notes: Vec<String>) -> Result<Report> {
        let (conditions, smoke, figures) =
            (self.conditions().await?, self.setup.smoke, rounds.into_figures()?);
        // A service that does not end is killed; the figures are valid all the same.
        if let Err(error) = self.system.stop().await {
            eprintln!("failed to stop the services: {error:#}");
        }
        Ok(Report { benchmark: benchmark.to_owned(), smoke, conditions, figures, notes })
    }

    /// Reads the conditions in force from the machine and from the servers: a rate means little without the durability
    /// settings behind it.
    async fn conditions(&self) -> Result<Vec<String>> {
        let [before, after] = [self.busy_before, busy_share().await]
            .map(|share| share.map_or_else(|| "?".to_owned(), |share| format!("{:.0} %", share * 100.0)));
        let mut database = PgConnection::connect(&self.urls.of("auditor")).await?;
        let settings = sqlx::query_scalar(
            "select 'PostgreSQL ' || current_setting('server_version') || ': ' || string_agg(name || '=' || setting, ', ')
             from pg_settings where name in ('fsync', 'full_page_writes', 'shared_buffers', 'synchronous_commit')",
        );
        let mut conditions = vec![
            format!(
                "{} cores for everything; busy while the system was idle: {before} before, {after} after",
                cores()
            ),
            settings.fetch_one(&mut database).await?,
            match self.rabbitmq.pid().await {
                Some(_) => format!(
                    "RabbitMQ {}: quorum queues; each message is persistent, mandatory and confirmed",
                    self.broker_version().await?
                ),
                None => "RabbitMQ stopped".to_owned(),
            },
            match self.home {
                Home::Docker => "servers as containers".to_owned(),
                Home::Local => "servers as plain processes".to_owned(),
            },
        ];
        conditions.extend(self.setup.settings.iter().map(|(name, value)| format!("{name}={value}")));
        Ok(conditions)
    }

    /// Reads the broker's version from its management API.
    async fn broker_version(&self) -> Result<String> {
        let client = reqwest::Client::builder().timeout(Duration::from_secs(5)).no_proxy().build()?;
        let answer = client.get(format!("{}/api/overview", self.rabbitmq.api_url())).send().await;
        let answer = answer.and_then(reqwest::Response::error_for_status);
        // Without the URL: it contains a password.
        let answer =
            answer.map_err(reqwest::Error::without_url).context("failed to read the broker's version")?;
        let overview: serde_json::Value = answer.json().await?;
        let version = overview["rabbitmq_version"].as_str();
        Ok(version.context("failed to read the broker's version: its API names none")?.to_owned())
    }
}

/// How much log the server has written since it was set up, in bytes.
pub(crate) async fn log_position(database: &mut PgConnection) -> sqlx::Result<f64> {
    sqlx::query_scalar("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8")
        .fetch_one(database)
        .await
}
