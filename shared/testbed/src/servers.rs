//! The servers that the tests of one run share.

use anyhow::{Context as _, Result};
use tokio::sync::OnceCell;

use crate::{Postgres, Rabbitmq};

/// The addresses of the servers of this test run. Set from outside when several processes share one start:
/// `TESTBED_POSTGRES_URL`, `TESTBED_RABBITMQ_URL` and `TESTBED_RABBITMQ_API`.
#[derive(Clone, Debug)]
pub struct Servers {
    /// The administrator's URL, database `postgres`.
    pub postgres_url: String,
    /// AMQP, without a virtual host.
    pub rabbitmq_url: String,
    /// The management API.
    pub rabbitmq_api: String,
}

/// Statics are never dropped: that these servers end with the process is the guard's work, not a destructor's.
static POSTGRES: OnceCell<SharedPostgres> = OnceCell::const_new();
static RABBITMQ: OnceCell<SharedRabbitmq> = OnceCell::const_new();
static SERVERS: OnceCell<Servers> = OnceCell::const_new();

pub(crate) struct SharedPostgres {
    pub(crate) admin_url: String,
    _own: Option<Postgres>,
}

pub(crate) struct SharedRabbitmq {
    pub(crate) url: String,
    pub(crate) api: String,
    _own: Option<Rabbitmq>,
}

/// PostgreSQL and RabbitMQ for this process: those that the environment names, else new ones where
/// [`crate::Home::choose`] says. Started once, on first use, both at the same time.
pub async fn servers() -> Result<&'static Servers> {
    SERVERS
        .get_or_try_init(|| async {
            let (postgres, rabbitmq) = tokio::try_join!(postgres(), rabbitmq())?;
            Ok(Servers {
                postgres_url: postgres.admin_url.clone(),
                rabbitmq_url: rabbitmq.url.clone(),
                rabbitmq_api: rabbitmq.api.clone(),
            })
        })
        .await
}

/// PostgreSQL alone: a test that wants only a database does not pay for a broker's start.
pub(crate) async fn postgres() -> Result<&'static SharedPostgres> {
    POSTGRES
        .get_or_try_init(|| async {
            if let Ok(admin_url) = std::env::var("TESTBED_POSTGRES_URL") {
                return Ok(SharedPostgres { admin_url, _own: None });
            }
            let own = Postgres::private().await.context("no PostgreSQL for this test")?;
            Ok(SharedPostgres { admin_url: own.admin_url("postgres"), _own: Some(own) })
        })
        .await
}

pub(crate) async fn rabbitmq() -> Result<&'static SharedRabbitmq> {
    RABBITMQ
        .get_or_try_init(|| async {
            if let Ok(url) = std::env::var("TESTBED_RABBITMQ_URL") {
                let api = std::env::var("TESTBED_RABBITMQ_API");
                let api = api.context("TESTBED_RABBITMQ_URL is set, TESTBED_RABBITMQ_API is not")?;
                return Ok(SharedRabbitmq { url, api, _own: None });
            }
            let own = Rabbitmq::private().await.context("no RabbitMQ for this test")?;
            Ok(SharedRabbitmq { url: own.base_url(), api: own.api_url(), _own: Some(own) })
        })
        .await
}
