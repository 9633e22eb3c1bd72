//! The whole system for one benchmark: private servers and all services on loopback, stopped when the benchmark ends.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use load_tests::{Load, Saturation, Summary};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use testbed::{DatabaseUrls, Home, Passwords, Postgres, Rabbitmq, System, SystemOptions};
use uuid::Uuid;

use crate::{
    conditions::Conditions,
    cpu_time,
    report::{Figure, Report},
    setup::Setup,
};

/// Servers and services that no other program uses.
pub(crate) struct Rig {
    // Fields are dropped in this order: the services before the servers that they are connected to.
    system: System,
    options: SystemOptions,
    rabbitmq: Rabbitmq,
    postgres: Postgres,
    urls: DatabaseUrls,
    home: Home,
    setup: Setup,
    /// The other processes' share of the cores before anything was measured.
    busy_before: Option<f64>,
}

/// The system's database, with the name that the services' documentation gives it.
const DATABASE: &str = "shop";

/// A service starts in less than a second; its first build and other work on the machine may come on top.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// Servers go on working for a moment after they report that they are ready.
const SETTLE: Duration = Duration::from_secs(2);

/// A login of the database.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Login {
    Orders,
    Auditor,
    /// The superuser.
    Admin,
}

impl Rig {
    /// Starts servers and services, and waits until all of them are ready.
    pub(crate) async fn start(setup: &Setup) -> anyhow::Result<Self> {
        Self::start_with(setup, async |_| Ok(())).await
    }

    /// Like [`start`](Self::start), but the services get options that `change` has changed. The rig's connections stay as
    /// they are.
    pub(crate) async fn start_with(
        setup: &Setup,
        change: impl AsyncFnOnce(&mut SystemOptions) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        eprintln!("starting PostgreSQL, RabbitMQ and the services");
        let home = Home::choose().await?;
        let (postgres, rabbitmq) = tokio::try_join!(Postgres::private_in(home), Rabbitmq::private_in(home))?;
        let mut admin = PgConnection::connect(&postgres.admin_url("postgres")).await?;
        sqlx::query(AssertSqlSafe(format!("create database {DATABASE}"))).execute(&mut admin).await?;
        admin.close().await?;
        let passwords = Passwords::all("benchmark");
        let admin_url = postgres.admin_url(DATABASE);
        testbed::bootstrap(&admin_url, &passwords).await?;
        let urls = DatabaseUrls::new(&admin_url, &passwords)?;

        let mut options = SystemOptions::new(urls.clone(), rabbitmq.url());
        options.env.clone_from(&setup.settings);
        change(&mut options).await?;
        let system = System::start(options.clone()).await?;
        system.wait_ready(READY_DEADLINE).await?;
        tokio::time::sleep(setup.pause(SETTLE)).await;
        let busy_before = cpu_time::busy_share(setup).await;
        Ok(Self { system, options, rabbitmq, postgres, urls, home, setup: setup.clone(), busy_before })
    }

    /// Returns the address for `POST /orders`, without the path.
    pub(crate) fn orders_url(&self) -> String {
        self.system.orders_url()
    }

    pub(crate) fn amqp_url(&self) -> String {
        self.rabbitmq.url()
    }

    /// Returns the database's URL with the order service's login.
    pub(crate) fn database_url(&self) -> &str {
        &self.urls.orders
    }

    pub(crate) async fn connect(&self, login: Login) -> anyhow::Result<PgConnection> {
        let url = match login {
            Login::Orders => self.urls.orders.clone(),
            Login::Auditor => self.urls.auditor.clone(),
            Login::Admin => self.postgres.admin_url(DATABASE),
        };
        PgConnection::connect(&url).await.context("failed to connect to the database")
    }

    /// Reads the conditions in force; the broker's only while it runs.
    pub(crate) async fn conditions(&self) -> anyhow::Result<Conditions> {
        let api = self.rabbitmq.pid().await.map(|_| self.rabbitmq.api_url());
        let busy = [self.busy_before, cpu_time::busy_share(&self.setup).await];
        let mut database = self.connect(Login::Auditor).await?;
        let conditions = Conditions::read(&mut database, api.as_deref(), self.home, busy).await?;
        Ok(conditions.with_settings(&self.setup.settings))
    }

    /// Returns the process ids of the services, `PostgreSQL` and `RabbitMQ`, as far as they run.
    pub(crate) async fn processes(&self) -> Vec<(String, u32)> {
        let services = self.system.names().filter_map(|name| Some((name.to_owned(), self.system.pid(name)?)));
        let mut processes: Vec<_> = services.collect();
        for (name, pid) in
            [("PostgreSQL", self.postgres.pid().await), ("RabbitMQ", self.rabbitmq.pid().await)]
        {
            processes.extend(pid.map(|pid| (name.to_owned(), pid)));
        }
        processes
    }

    /// Sends SIGTERM to a service and waits until it has ended.
    pub(crate) async fn stop_service(&self, name: &str) -> anyhow::Result<()> {
        let code = self.system.terminate(name).await?;
        if code != Some(0) {
            // No figure depends on it, and the services' own tests check their exit codes.
            eprintln!("{name} ended with exit code {code:?}");
        }
        Ok(())
    }

    /// Starts a stopped service, waits until it is ready, and returns how long that took.
    pub(crate) async fn start_service(&self, name: &str) -> anyhow::Result<Duration> {
        let ready = format!("{}/readyz", self.system.url(name)?);
        let client = reqwest::Client::builder().timeout(Duration::from_secs(2)).no_proxy().build()?;
        let start = Instant::now();
        self.system.start_again(name).await?;
        loop {
            let answer = client.get(&ready).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(start.elapsed());
            }
            ensure!(
                start.elapsed() < READY_DEADLINE,
                "failed to start {name}: it is not ready after {READY_DEADLINE:?}"
            );
            // More often than `System::wait_ready` asks: this time is a figure.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Stops all services, and starts them again with further settings.
    pub(crate) async fn restart_services(&mut self, settings: Vec<(String, String)>) -> anyhow::Result<()> {
        self.system.stop().await?;
        self.options.env.extend(settings);
        self.system = System::start(self.options.clone()).await?;
        self.system.wait_ready(READY_DEADLINE).await
    }

    /// Restarts PostgreSQL with its statistics of statements. The services connect again.
    pub(crate) async fn count_statements(&self) -> anyhow::Result<()> {
        let mut admin = self.connect(Login::Admin).await?;
        sqlx::query("alter system set shared_preload_libraries = 'pg_stat_statements'")
            .execute(&mut admin)
            .await?;
        admin.close().await?;
        self.postgres.stop().await?;
        self.postgres.start().await?;
        let mut admin = self.connect(Login::Admin).await?;
        sqlx::query("create extension pg_stat_statements").execute(&mut admin).await?;
        sqlx::query("alter system set pg_stat_statements.track_planning = on").execute(&mut admin).await?;
        sqlx::query("select pg_reload_conf()").execute(&mut admin).await?;
        self.system.wait_ready(READY_DEADLINE).await
    }

    /// Resets the statistics of statements.
    pub(crate) async fn forget_statements(&self) -> anyhow::Result<()> {
        let mut admin = self.connect(Login::Admin).await?;
        sqlx::query("select pg_stat_statements_reset()").execute(&mut admin).await?;
        Ok(())
    }

    /// Stops the broker. The services still accept orders, and the relay has nothing to do.
    pub(crate) async fn stop_broker(&self) -> anyhow::Result<()> {
        self.rabbitmq.stop().await
    }

    pub(crate) async fn start_broker(&self) -> anyhow::Result<()> {
        self.rabbitmq.start().await
    }

    /// Sends SIGKILL to a service and starts it again.
    pub(crate) async fn kill_and_start(&self, name: &str) -> anyhow::Result<()> {
        self.system.kill(name).await?;
        self.start_service(name).await?;
        Ok(())
    }

    /// Places one order and returns its id.
    pub(crate) async fn place(&self, body: &'static str) -> anyhow::Result<Uuid> {
        let client = reqwest::Client::builder().timeout(Duration::from_secs(5)).no_proxy().build()?;
        let request = client.post(format!("{}/orders", self.orders_url()));
        let answer = request.header("content-type", "application/json").body(body).send().await;
        let answer =
            answer.and_then(reqwest::Response::error_for_status).context("failed to place an order")?;
        let order: serde_json::Value = answer.json().await?;
        let id = order["id"].as_str().and_then(|id| id.parse().ok());
        id.context("failed to place an order: the answer has no order id")
    }

    /// Places orders at a constant rate.
    ///
    /// # Errors
    /// When one was not accepted.
    pub(crate) async fn load(&self, rate: u32, for_: Duration) -> anyhow::Result<Summary> {
        load_tests::run(Load::new(self.orders_url(), rate, for_), |_| ()).await?.all_accepted()
    }

    /// Places orders as fast as they are accepted, on so many connections.
    ///
    /// # Errors
    /// When one was not accepted.
    pub(crate) async fn saturate(&self, connections: u32, for_: Duration) -> anyhow::Result<Summary> {
        let load = Saturation { url: self.orders_url(), connections, for_, seed: fastrand::u64(..) };
        load_tests::saturate(load, |_| ()).await?.all_accepted()
    }

    /// Ends the benchmark with its figures: reads the conditions, and stops all services.
    pub(crate) async fn finish(
        self,
        benchmark: &'static str,
        figures: Vec<Figure>,
        notes: Vec<String>,
    ) -> anyhow::Result<Report> {
        let report = Report::new(benchmark, &self.setup, self.conditions().await?, figures, notes);
        self.stop().await;
        Ok(report)
    }

    /// Stops all services in order. One that does not end is killed; the figures are valid all the same.
    pub(crate) async fn stop(self) {
        if let Err(error) = self.system.stop().await {
            eprintln!("failed to stop the services: {error:#}");
        }
    }
}
