//! Servers and services for one benchmark: private, on loopback, gone when it ends.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use testbed::{DatabaseUrls, Home, Passwords, Postgres, Rabbitmq, System, SystemOptions};
use uuid::Uuid;

use crate::{bare_publisher::Message, conditions::Conditions, orders_sql, other_work};

/// The whole system, with servers that nobody else uses.
pub(crate) struct Rig {
    // Fields are dropped in this order: the services before what they are connected to.
    system: System,
    rabbitmq: Rabbitmq,
    postgres: Postgres,
    urls: DatabaseUrls,
    home: Home,
    settings: Vec<(String, String)>,
    /// Others' share of the cores before anything was measured.
    busy_before: Option<f64>,
}

/// The database of the system, as in the services' documentation.
const DATABASE: &str = "shop";

/// A service starts in less than a second; its first build and the machine's other work may come on top.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Servers go on working for a moment after they say that they are ready.
const SETTLE: Duration = Duration::from_secs(2);

/// Who asks the database.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Login {
    Orders,
    Auditor,
}

impl Rig {
    /// Starts everything and waits until all of it is ready. `settings` go to the services on top of their defaults.
    ///
    /// # Errors
    /// When something is missing or does not start; says what.
    pub(crate) async fn start(settings: Vec<(String, String)>) -> anyhow::Result<Self> {
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
        options.env.clone_from(&settings);
        let system = System::start(options).await?;
        system.wait_ready(READY_WITHIN).await?;
        tokio::time::sleep(SETTLE).await;
        let busy_before = other_work::share().await;
        Ok(Self { system, rabbitmq, postgres, urls, home, settings, busy_before })
    }

    /// Where orders are placed.
    pub(crate) fn orders_url(&self) -> String {
        self.system.orders_url()
    }

    /// The broker, as the services know it.
    pub(crate) fn amqp_url(&self) -> String {
        self.rabbitmq.url()
    }

    /// The database, as the order service knows it.
    pub(crate) fn database_url(&self) -> &str {
        &self.urls.orders
    }

    /// A connection of one's own to the database.
    ///
    /// # Errors
    /// When the database does not answer.
    pub(crate) async fn connect(&self, login: Login) -> anyhow::Result<PgConnection> {
        let url = match login {
            Login::Orders => &self.urls.orders,
            Login::Auditor => &self.urls.auditor,
        };
        PgConnection::connect(url).await.context("cannot connect to the database")
    }

    /// What is in force: with the broker's side only while it runs.
    ///
    /// # Errors
    /// When a server that runs does not say.
    pub(crate) async fn conditions(&self) -> anyhow::Result<Conditions> {
        let api = self.rabbitmq.pid().await.map(|_| self.rabbitmq.api_url());
        let busy = [self.busy_before, other_work::share().await];
        let mut database = self.connect(Login::Auditor).await?;
        let conditions = Conditions::read(&mut database, api.as_deref(), self.home, busy).await?;
        Ok(conditions.with_settings(&self.settings))
    }

    /// Process ids: the services, `PostgreSQL` and `RabbitMQ`, as far as they run.
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

    /// SIGTERM.
    ///
    /// # Errors
    /// When the service is not running, or ignores the signal.
    pub(crate) async fn stop_service(&self, name: &str) -> anyhow::Result<()> {
        let code = self.system.terminate(name).await?;
        if code != Some(0) {
            // Worth a look, but no figure depends on it: the tests hold the services to their exit codes.
            eprintln!("{name} left with exit code {code:?}");
        }
        Ok(())
    }

    /// Starts a service that was stopped, and waits until it is ready. Returns how long that took.
    ///
    /// # Errors
    /// When it does not become ready.
    pub(crate) async fn start_service(&self, name: &str) -> anyhow::Result<Duration> {
        let ready = format!("{}/readyz", self.system.url(name)?);
        let client = reqwest::Client::builder().timeout(Duration::from_secs(2)).no_proxy().build()?;
        let start = tokio::time::Instant::now();
        self.system.start_again(name).await?;
        loop {
            let answer = client.get(&ready).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(start.elapsed());
            }
            ensure!(start.elapsed() < READY_WITHIN, "{name} is not ready after {READY_WITHIN:?}");
            // Finer than `System::wait_ready` looks: this time is a figure.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Stops the broker. Orders are still accepted; the relay has nothing to do.
    ///
    /// # Errors
    /// When it does not stop.
    pub(crate) async fn stop_broker(&self) -> anyhow::Result<()> {
        self.rabbitmq.stop().await
    }

    /// Places one order and returns its id.
    ///
    /// # Errors
    /// When it is not accepted.
    pub(crate) async fn place(&self, body: &'static str) -> anyhow::Result<Uuid> {
        let client = reqwest::Client::builder().timeout(Duration::from_secs(5)).no_proxy().build()?;
        let request = client.post(format!("{}/orders", self.orders_url()));
        let answer = request.header("content-type", "application/json").body(body).send().await?;
        let order: serde_json::Value = answer.error_for_status()?.json().await?;
        order["id"].as_str().and_then(|id| id.parse().ok()).context("the answer has no order id")
    }

    /// The body and the headers of an order's event, as they wait in the outbox.
    ///
    /// # Errors
    /// When the order has no event.
    pub(crate) async fn event_of(&self, order: Uuid) -> anyhow::Result<(String, String)> {
        let mut database = self.connect(Login::Orders).await?;
        let event = sqlx::query_as(
            "select payload::text, headers::text from outbox where aggregate_id = $1 and aggregate_version = 1",
        );
        event.bind(order).fetch_one(&mut database).await.context("the order has no event")
    }

    /// Puts so many unpublished events into the outbox, each like that of `template`.
    ///
    /// # Errors
    /// When the database fails.
    pub(crate) async fn fill_outbox(&self, template: Uuid, events: u32) -> anyhow::Result<()> {
        let mut database = self.connect(Login::Orders).await?;
        let fill = sqlx::query(orders_sql::FILL_OUTBOX).bind(template).bind(i64::from(events));
        let filled = fill.execute(&mut database).await.context("cannot fill the outbox")?.rows_affected();
        ensure!(filled == u64::from(events), "{filled} events were written instead of {events}");
        // Otherwise autovacuum would notice the new rows in the middle of what is measured.
        sqlx::query("vacuum analyze outbox").execute(&mut database).await?;
        Ok(())
    }

    /// Events of the outbox as messages: `count` of those for which `condition` holds.
    ///
    /// # Errors
    /// When there are not as many.
    pub(crate) async fn messages(&self, condition: &'static str, count: u32) -> anyhow::Result<Vec<Message>> {
        let mut database = self.connect(Login::Orders).await?;
        let statement =
            format!("select event_id::text, payload::text from outbox where {condition} limit {count}");
        let rows: Vec<(String, String)> =
            sqlx::query_as(AssertSqlSafe(statement)).fetch_all(&mut database).await?;
        ensure!(rows.len() == usize::try_from(count)?, "{} events with {condition}, not {count}", rows.len());
        Ok(rows.into_iter().map(|(id, body)| Message { id, body: body.into_bytes() }).collect())
    }

    /// So many messages like the event of `template`, of events that were in the outbox and are not any more.
    ///
    /// # Errors
    /// When the database fails.
    pub(crate) async fn fresh_messages(&self, template: Uuid, count: u32) -> anyhow::Result<Vec<Message>> {
        self.fill_outbox(template, count).await?;
        let messages = self.messages("published_at is null", count).await?;
        let mut database = self.connect(Login::Orders).await?;
        sqlx::query("delete from outbox where published_at is null").execute(&mut database).await?;
        Ok(messages)
    }

    /// Waits until every order is answered by both services and has come to its end.
    ///
    /// # Errors
    /// When that has not happened at the deadline; says how far it got.
    pub(crate) async fn everything_applied(&self, deadline: Duration) -> anyhow::Result<()> {
        let mut database = self.connect(Login::Auditor).await?;
        testbed::eventually("all orders to come to their end", deadline, async || {
            let (open, owed, inventory, billing): (i64, i64, i64, i64) = sqlx::query_as(
                "with created as (select count(*) as n from orders.outbox where event_type = 'OrderCreated')
                 select (select count(*) from orders.orders where status in ('pending', 'reserved', 'paid')),
                        (select count(*) from orders.outbox where published_at is null)
                      + (select count(*) from inventory.outbox where published_at is null)
                      + (select count(*) from billing.outbox where published_at is null)
                      + (select count(*) from billing.payments where state in ('asked', 'refunding')),
                        n - (select count(*) from inventory.processed_events where event_type = 'OrderCreated'),
                        n - (select count(*) from billing.processed_events where event_type = 'OrderCreated')
                 from created",
            )
            .fetch_one(&mut database)
            .await?;
            if (open, owed, inventory, billing) == (0, 0, 0, 0) {
                return Ok(Some(()));
            }
            // Counting takes time on the cores that are to do the work.
            tokio::time::sleep(Duration::from_millis(200)).await;
            anyhow::bail!(
                "{open} orders are open, {owed} events and payments owed; {inventory} are new to inventory, {billing} to billing"
            )
        })
        .await
    }

    /// Stops everything in order. What does not follow is killed, and is no reason to throw the figures away.
    pub(crate) async fn stop(self) {
        if let Err(unruly) = self.system.stop().await {
            eprintln!("{unruly:#}");
        }
    }
}
