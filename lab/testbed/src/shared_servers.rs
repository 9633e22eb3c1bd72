//! The servers that all tests of one run share.

use anyhow::{Context as _, Result};
use tokio::sync::OnceCell;

use crate::postgres::Postgres;
use crate::rabbitmq::Rabbitmq;

/// The addresses of the servers of this test run.
///
/// When several processes share the servers, the process that started them passes the addresses on in
/// `TESTBED_POSTGRES_URL`, `TESTBED_RABBITMQ_URL` and `TESTBED_RABBITMQ_API`.
#[derive(Clone, Debug)]
pub struct Servers {
    /// The administrator's URL, database `postgres`.
    pub postgres_url: String,
    /// The AMQP URL without a virtual host.
    pub rabbitmq_url: String,
    /// The management API's URL.
    pub rabbitmq_api: String,
}

// Statics are never dropped. The guard ends these servers when the process ends.
static POSTGRES: OnceCell<Postgres> = OnceCell::const_new();
static RABBITMQ: OnceCell<Rabbitmq> = OnceCell::const_new();

/// PostgreSQL and RabbitMQ for all tests of this process.
///
/// Uses the servers that the environment names. Otherwise the first call starts both at the same time, where
/// [`crate::Home::choose`] says.
pub async fn servers() -> Result<Servers> {
    let (postgres_url, (rabbitmq_url, rabbitmq_api)) = tokio::try_join!(postgres(), rabbitmq())?;
    Ok(Servers { postgres_url, rabbitmq_url, rabbitmq_api })
}

/// The administrator's URL of PostgreSQL alone: a test that needs only a database need not wait for a broker's start.
pub(crate) async fn postgres() -> Result<String> {
    if let Ok(admin_url) = std::env::var("TESTBED_POSTGRES_URL") {
        return Ok(admin_url);
    }
    let server = POSTGRES.get_or_try_init(Postgres::private).await;
    Ok(server.context("failed to start PostgreSQL for the tests")?.admin_url("postgres"))
}

/// The AMQP URL and the management API's URL of RabbitMQ alone.
pub(crate) async fn rabbitmq() -> Result<(String, String)> {
    if let Ok(url) = std::env::var("TESTBED_RABBITMQ_URL") {
        let api = std::env::var("TESTBED_RABBITMQ_API");
        return Ok((url, api.context("TESTBED_RABBITMQ_URL is set, TESTBED_RABBITMQ_API is not")?));
    }
    let broker = RABBITMQ.get_or_try_init(Rabbitmq::private).await;
    let broker = broker.context("failed to start RabbitMQ for the tests")?;
    Ok((broker.base_url(), broker.api_url()))
}
