//! The program as a child process, and what its tables hold.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use testbed::{RestartableProcess, eventually, free_port};
use uuid::Uuid;

/// How long a test waits for a condition, on a busy machine. After a kill, RabbitMQ 3.10 may be silent for half a minute.
pub(crate) const DEADLINE: Duration = Duration::from_secs(180);
/// Longer than the program's deadlines.
const REQUEST_DEADLINE: Duration = Duration::from_secs(20);

pub(crate) struct Program {
    pub(crate) process: RestartableProcess,
    orders_url: String,
    database_url: String,
}

impl Program {
    /// Starts the program. `name` is for its log.
    pub(crate) fn start(name: &str, database_url: &str, amqp_url: &str) -> Result<Self> {
        let address = format!("127.0.0.1:{}", free_port()?);
        let mut command = Command::new(env!("CARGO_BIN_EXE_one-file"));
        command.env("DATABASE_URL", database_url).env("AMQP_URL", amqp_url).env("HTTP_ADDRESS", &address);
        command.env_remove("EXCHANGE");
        let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.log"));
        let process = RestartableProcess::new(command, log);
        process.start()?;
        let orders_url = format!("http://{address}/orders");
        Ok(Self { process, orders_url, database_url: database_url.to_owned() })
    }

    /// Places an order, and returns its id if it was accepted.
    pub(crate) async fn order(&self) -> Result<Uuid> {
        let order = json!({ "sku": "TEA-001", "quantity": 2 });
        let answer =
            Client::new().post(&self.orders_url).timeout(REQUEST_DEADLINE).json(&order).send().await?;
        ensure!(answer.status() == StatusCode::CREATED, "{}", answer.status());
        let body: Value = serde_json::from_slice(&answer.bytes().await?)?;
        Ok(body["order"].as_str().context("the answer has no id")?.parse()?)
    }

    /// Places an order when the program is ready.
    pub(crate) async fn first_order(&self) -> Result<Uuid> {
        eventually("an order to be accepted", DEADLINE, async || self.order().await.map(Some)).await
    }

    /// Executes statements.
    pub(crate) async fn execute(&self, statements: &str) -> Result<()> {
        testbed::sql::execute(&self.database_url, statements, DEADLINE).await
    }

    /// The first column of a query.
    pub(crate) async fn read<T>(&self, query: &str) -> Result<Vec<T>>
    where
        (T,): for<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow>,
        T: Send + Unpin,
    {
        let mut connection = PgConnection::connect(&self.database_url).await?;
        let rows: Vec<(T,)> = sqlx::query_as(AssertSqlSafe(query)).fetch_all(&mut connection).await?;
        connection.close().await?;
        Ok(rows.into_iter().map(|(column,)| column).collect())
    }

    /// Waits until nothing is pending and there are at least as many reservations as orders.
    pub(crate) async fn settle(&self) -> Result<()> {
        eventually("all orders to be reserved", DEADLINE, async || {
            let left = "select count(*) from one_file.outbox where published_at is null
                        union all select count(*) from one_file.orders where id not in
                            (select order_id from one_file.reservations)";
            let left: Vec<i64> = self.read(left).await?;
            ensure!(left == [0, 0], "pending, without a reservation: {left:?}");
            Ok(Some(()))
        })
        .await
        .with_context(|| self.process.log_tail())
    }

    /// Waits until an order that is placed now has its reservation: everything that was in the queue before was consumed.
    pub(crate) async fn drain(&self) -> Result<()> {
        self.first_order().await?;
        self.settle().await
    }

    /// Orders with more than one reservation.
    pub(crate) async fn doubled(&self) -> Result<Vec<Uuid>> {
        self.read("select order_id from one_file.reservations group by order_id having count(*) > 1").await
    }
}
