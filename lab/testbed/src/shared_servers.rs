//! The servers that all tests of one run share. The first test that needs one starts it, where [`crate::Home::choose`] says.
//!
//! When several processes share the servers, the process that started them passes the addresses on in
//! `TESTBED_POSTGRES_URL`, `TESTBED_RABBITMQ_URL` and `TESTBED_RABBITMQ_API`.

use anyhow::{Context as _, Result};
use tokio::sync::OnceCell;

use crate::postgres::Postgres;
use crate::rabbitmq::Rabbitmq;

// Statics are never dropped. The guard ends these servers when the process ends.
static POSTGRES: OnceCell<Postgres> = OnceCell::const_new();
static RABBITMQ: OnceCell<Rabbitmq> = OnceCell::const_new();

/// The administrator's URL of PostgreSQL, for the database `postgres`.
pub(crate) async fn postgres() -> Result<String> {
    if let Ok(admin_url) = std::env::var("TESTBED_POSTGRES_URL") {
        return Ok(admin_url);
    }
    let server = POSTGRES.get_or_try_init(Postgres::private).await;
    Ok(server.context("failed to start PostgreSQL for the tests")?.admin_url("postgres"))
}

/// The AMQP URL of RabbitMQ without a virtual host, and the management API's URL.
pub(crate) async fn rabbitmq() -> Result<(String, String)> {
    if let Ok(url) = std::env::var("TESTBED_RABBITMQ_URL") {
        let api = std::env::var("TESTBED_RABBITMQ_API");
        return Ok((url, api.context("TESTBED_RABBITMQ_URL is set, TESTBED_RABBITMQ_API is not")?));
    }
    let broker = RABBITMQ.get_or_try_init(Rabbitmq::private).await;
    let broker = broker.context("failed to start RabbitMQ for the tests")?;
    Ok((broker.base_url(), broker.api_url()))
}
