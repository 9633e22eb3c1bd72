//! Starts the order service in its own process.

use std::{
    io::Write as _,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::Context as _;
use reqwest::Client;
use serde_json::{Value, json};
use sqlx::PgPool;
use testbed::TestDatabase;
use uuid::Uuid;

/// A broker that is always unavailable: no process listens on port 1.
pub(crate) const NO_BROKER: &str = "amqp://shop:shop@127.0.0.1:1/shop";

/// How long a test waits for a condition, on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Orders {
    pub(crate) url: String,
    pub(crate) client: Client,
    /// Connected as the auditor, which may read everything and write nothing.
    pub(crate) auditor: PgPool,
    pub(crate) database: TestDatabase,
    process: Child,
    settings: Vec<(String, String)>,
}

impl Orders {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        Self::start_with(&[]).await
    }

    pub(crate) async fn start_with(settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        let orders = Self::launch(testbed::database().await?, settings).await?;
        orders.ready().await?;
        Ok(orders)
    }

    /// Does not wait until the service is ready.
    pub(crate) async fn launch(database: TestDatabase, settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        // A port that is free at this moment. With port 0 the test would not learn which port the process got.
        let address = format!("127.0.0.1:{}", testbed::free_port()?);
        let database_url = database.url("orders");
        let own = [
            ("ORDERS_DATABASE_URL", database_url.as_str()),
            ("ORDERS_AMQP_URL", NO_BROKER),
            ("ORDERS_HTTP_ADDRESS", address.as_str()),
            ("ORDERS_LOG", "warn"),
        ];
        let settings: Vec<(String, String)> =
            own.iter().chain(settings).map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let process = command().envs(settings.clone()).spawn()?;
        Ok(Self {
            url: format!("http://{address}"),
            client: Client::new(),
            auditor: PgPool::connect(&database.url("auditor")).await?,
            database,
            process,
            settings,
        })
    }

    pub(crate) async fn ready(&self) -> anyhow::Result<()> {
        testbed::eventually("the service to be ready", DEADLINE, async || {
            let ready = self.client.get(format!("{}/readyz", self.url)).send().await?;
            Ok(ready.status().is_success().then_some(()))
        })
        .await
    }

    /// Runs the binary beside the service, with the same settings, and returns whether it succeeded and what it printed.
    pub(crate) fn run(&self, arguments: &[&str], input: &str) -> anyhow::Result<(bool, String)> {
        let mut run = command();
        run.args(arguments).envs(self.settings.clone()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = run.spawn()?;
        child.stdin.take().context("no standard input")?.write_all(input.as_bytes())?;
        let output = child.wait_with_output()?;
        Ok((output.status.success(), String::from_utf8(output.stdout)?))
    }

    /// Kills the service and starts it again, with the same database.
    pub(crate) async fn restart(&mut self) -> anyhow::Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        self.process = command().envs(self.settings.clone()).spawn()?;
        self.ready().await
    }

    pub(crate) async fn post(&self, body: &Value) -> anyhow::Result<(u16, Value)> {
        let answer = self.ask(self.client.post(format!("{}/orders", self.url)).json(body)).await?;
        Ok((answer.status, answer.body))
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<(u16, Value)> {
        let answer = self.ask(self.client.get(format!("{}{path}", self.url))).await?;
        Ok((answer.status, answer.body))
    }

    /// The numbers of orders, lines and events.
    pub(crate) async fn rows(&self) -> anyhow::Result<(i64, i64, i64)> {
        let sql = "select (select count(*) from orders.orders), (select count(*) from orders.order_lines),
                          (select count(*) from orders.outbox)";
        Ok(sqlx::query_as(sql).fetch_one(&self.auditor).await?)
    }
}

impl Drop for Orders {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A command for the binary under test, without the settings of the surrounding shell. `OPEN_FILES` limits its files.
pub(crate) fn command() -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n ${OPEN_FILES:-4096}; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_orders")]);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ORDERS_")) {
        command.env_remove(name);
    }
    command.stdout(Stdio::null());
    command
}

pub(crate) fn order() -> Value {
    json!({ "customerId": Uuid::new_v4(), "lines": [{ "sku": "TEA-001", "quantity": 2 }] })
}
