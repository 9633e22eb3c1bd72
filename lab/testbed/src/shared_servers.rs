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
static POSTGRES: OnceCell<SharedPostgres> = OnceCell::const_new();
static RABBITMQ: OnceCell<SharedRabbitmq> = OnceCell::const_new();

pub(crate) struct SharedPostgres {
    pub(crate) admin_url: String,
    _started_here: Option<Postgres>,
}

pub(crate) struct SharedRabbitmq {
    pub(crate) url: String,
    pub(crate) api: String,
    _started_here: Option<Rabbitmq>,
}

/// PostgreSQL and RabbitMQ for all tests of this process.
///
/// Uses the servers that the environment names. Otherwise the first call starts both at the same time, where
/// [`crate::Home::choose`] says.
pub async fn servers() -> Result<Servers> {
    let (postgres, rabbitmq) = tokio::try_join!(postgres(), rabbitmq())?;
    Ok(Servers {
        postgres_url: postgres.admin_url.clone(),
        rabbitmq_url: rabbitmq.url.clone(),
        rabbitmq_api: rabbitmq.api.clone(),
    })
}

/// PostgreSQL alone: a test that needs only a database need not wait for a broker's start.
pub(crate) async fn postgres() -> Result<&'static SharedPostgres> {
    POSTGRES
        .get_or_try_init(|| async {
            if let Ok(admin_url) = std::env::var("TESTBED_POSTGRES_URL") {
                return Ok(SharedPostgres { admin_url, _started_here: None });
            }
            let server = Postgres::private().await.context("failed to start PostgreSQL for the tests")?;
            Ok(SharedPostgres { admin_url: server.admin_url("postgres"), _started_here: Some(server) })
        })
        .await
}

/// RabbitMQ alone.
pub(crate) async fn rabbitmq() -> Result<&'static SharedRabbitmq> {
    RABBITMQ
        .get_or_try_init(|| async {
            if let Ok(url) = std::env::var("TESTBED_RABBITMQ_URL") {
                let api = std::env::var("TESTBED_RABBITMQ_API");
                let api = api.context("TESTBED_RABBITMQ_URL is set, TESTBED_RABBITMQ_API is not")?;
                return Ok(SharedRabbitmq { url, api, _started_here: None });
            }
            let broker = Rabbitmq::private().await.context("failed to start RabbitMQ for the tests")?;
            Ok(SharedRabbitmq { url: broker.base_url(), api: broker.api_url(), _started_here: Some(broker) })
        })
        .await
}
