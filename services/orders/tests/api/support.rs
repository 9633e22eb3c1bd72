//! Starts the order service in its own process.

use std::{
    io::Write as _,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::Context as _;
use reqwest::Client;
use serde_json::{Value, json};
use sqlx::PgPool;
use testbed::{TestDatabase, TestService};
use uuid::Uuid;

/// A broker that is always unavailable: no process listens on port 1.
pub(crate) const NO_BROKER: &str = "amqp://shop:shop@127.0.0.1:1/shop";

/// How long a test waits for a condition, on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Orders {
    /// The first field, because fields are dropped in order: the process ends before its database.
    pub(crate) service: TestService,
    pub(crate) url: String,
    pub(crate) client: Client,
    /// Connected as the auditor, which may read everything and write nothing.
    pub(crate) auditor: PgPool,
    pub(crate) database: TestDatabase,
}

impl Orders {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        Self::start_with(&[]).await
    }

    pub(crate) async fn start_with(settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        let orders = Self::launch(testbed::database().await?, settings).await?;
        orders.service.ready().await?;
        Ok(orders)
    }

    /// Does not wait until the service is ready.
    pub(crate) async fn launch(database: TestDatabase, settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        let database_url = database.url("orders");
        let own = [("ORDERS_DATABASE_URL", &*database_url), ("ORDERS_AMQP_URL", NO_BROKER)];
        let service = TestService::start(command(), "ORDERS_", &[&own[..], settings].concat())?;
        Ok(Self {
            url: service.url().to_owned(),
            client: Client::new(),
            auditor: PgPool::connect(&database.url("auditor")).await?,
            database,
            service,
        })
    }

    /// Runs the binary beside the service, with the same settings, and returns whether it succeeded and what it printed.
    pub(crate) fn run(&self, arguments: &[&str], input: &str) -> anyhow::Result<(bool, String)> {
        let mut run = self.service.command();
        run.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = run.spawn()?;
        child.stdin.take().context("no standard input")?.write_all(input.as_bytes())?;
        let output = child.wait_with_output()?;
        Ok((output.status.success(), String::from_utf8(output.stdout)?))
    }

    pub(crate) async fn post(&self, body: &Value) -> anyhow::Result<(u16, Value)> {
        let answer = self.ask(self.client.post(format!("{}/orders", self.url)).json(body)).await?;
        Ok((answer.status, answer.body))
    }

    /// Places an order, and returns the answer. A busy machine refuses some with 503, and writes nothing.
    pub(crate) async fn place(&self) -> anyhow::Result<Value> {
        testbed::eventually("an order to be accepted", DEADLINE, async || {
            let (status, placed) = self.post(&order()).await?;
            anyhow::ensure!(status == 201, "{status}: {placed}");
            Ok(Some(placed))
        })
        .await
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

/// A command for the binary under test, without the settings of the surrounding shell. `OPEN_FILES` limits its files.
pub(crate) fn command() -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n ${OPEN_FILES:-4096}; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_orders")]);
    testbed::remove_settings(&mut command, "ORDERS_");
    command.stdout(Stdio::null());
    command
}

pub(crate) fn order() -> Value {
    json!({ "customerId": Uuid::new_v4(), "lines": [{ "sku": "TEA-001", "quantity": 2 }] })
}
