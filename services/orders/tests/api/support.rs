//! The service in a process of its own.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use reqwest::Client;
use serde_json::{Value, json};
use sqlx::PgPool;
use testbed::TestDatabase;
use uuid::Uuid;

/// A broker that is never there: port 1 answers nobody.
pub(crate) const NO_BROKER: &str = "amqp://shop:shop@127.0.0.1:1/shop";

pub(crate) struct Orders {
    pub(crate) url: String,
    pub(crate) client: Client,
    /// As the auditor, who sees everything and changes nothing.
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
        let database = testbed::database().await?;
        // A port that was free a moment ago. The service cannot be asked for port 0: nobody would know which it got.
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
        let orders = Self {
            url: format!("http://{address}"),
            client: Client::new(),
            auditor: PgPool::connect(&database.url("auditor")).await?,
            database,
            process,
            settings,
        };
        orders.ready().await?;
        Ok(orders)
    }

    async fn ready(&self) -> anyhow::Result<()> {
        testbed::eventually("the service to be ready", Duration::from_secs(20), async || {
            let ready = self.client.get(format!("{}/readyz", self.url)).send().await?;
            Ok(ready.status().is_success().then_some(()))
        })
        .await
    }

    /// Killed, and started again over the same database.
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

    /// How many orders, lines and events there are.
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

/// The binary under test, with no settings but those that a test gives it.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orders"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ORDERS_")) {
        command.env_remove(name);
    }
    command.stdout(Stdio::null());
    command
}

pub(crate) fn order() -> Value {
    json!({ "customerId": Uuid::new_v4(), "lines": [{ "sku": "TEA-001", "quantity": 2 }] })
}
