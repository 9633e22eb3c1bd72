//! Creates logins and schemas and sets passwords, as an administrator does before the first service starts.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use reqwest::Url;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::{sync::Mutex, time::timeout};
use uuid::Uuid;

use crate::eventually::eventually;
use crate::sql;

/// A bootstrap may have to wait for another one that runs at the same time.
const BOOTSTRAP_DEADLINE: Duration = Duration::from_secs(60);

/// The passwords of the five logins that `migrations/bootstrap.sql` creates.
#[derive(Clone)]
pub struct Passwords {
    pub orders: String,
    pub inventory: String,
    pub billing: String,
    pub provider: String,
    /// The auditor may read everything and write nothing.
    pub auditor: String,
}

impl Passwords {
    /// A password for each login that no other user of this machine can guess.
    pub fn random() -> Self {
        Self::each_from(|| Uuid::new_v4().simple().to_string())
    }

    /// The same password for all five logins, for servers that run only as long as a test.
    pub fn all(password: &str) -> Self {
        Self::each_from(|| password.to_owned())
    }

    fn each_from(password: impl Fn() -> String) -> Self {
        Self {
            orders: password(),
            inventory: password(),
            billing: password(),
            provider: password(),
            auditor: password(),
        }
    }

    fn each(&self) -> [(&'static str, &str); 5] {
        [
            ("orders", &self.orders),
            ("inventory", &self.inventory),
            ("billing", &self.billing),
            ("provider", &self.provider),
            ("auditor", &self.auditor),
        ]
    }
}

/// The URLs of one database for the five logins.
#[derive(Clone, Debug)]
pub struct DatabaseUrls {
    pub orders: String,
    pub inventory: String,
    pub billing: String,
    pub provider: String,
    /// For the reconciliation, which only reads.
    pub auditor: String,
}

impl DatabaseUrls {
    /// Takes the administrator's URL and replaces its user and password by those of each login.
    pub fn new(admin_url: &str, passwords: &Passwords) -> Result<Self> {
        let admin = Url::parse(admin_url).context("the database URL is invalid")?;
        let url = |login: &str, password: &str| {
            let mut url = admin.clone();
            let replaced = url.set_username(login).and_then(|()| url.set_password(Some(password)));
            replaced.map(|()| String::from(url)).map_err(|()| anyhow!("the database URL has no host"))
        };
        Ok(Self {
            orders: url("orders", &passwords.orders)?,
            inventory: url("inventory", &passwords.inventory)?,
            billing: url("billing", &passwords.billing)?,
            provider: url("provider", &passwords.provider)?,
            auditor: url("auditor", &passwords.auditor)?,
        })
    }
}

/// Runs `migrations/bootstrap.sql` in the database of `admin_url` and sets the passwords. Safe to run again.
pub async fn bootstrap(admin_url: &str, passwords: &Passwords) -> Result<()> {
    timeout(BOOTSTRAP_DEADLINE, run(admin_url, passwords))
        .await
        .with_context(|| format!("the bootstrap took more than {} s", BOOTSTRAP_DEADLINE.as_secs()))?
}

async fn run(admin_url: &str, passwords: &Passwords) -> Result<()> {
    let mut admin =
        PgConnection::connect(admin_url).await.context("failed to connect as the administrator")?;
    let script = sqlx::raw_sql(include_str!("../../../migrations/bootstrap.sql"));
    script.execute(&mut admin).await.context("failed to run bootstrap.sql")?;
    // One transaction, with the lock that the script takes: PostgreSQL refuses concurrent changes of one role.
    let mut transaction = admin.begin().await?;
    sqlx::query("select pg_advisory_xact_lock(hashtext('shop.bootstrap'))")
        .execute(&mut *transaction)
        .await?;
    for (login, password) in passwords.each() {
        // `alter role` takes no parameters: the server quotes the password.
        let quoted = sqlx::query_scalar::<_, String>("select format('alter role %I password %L', $1, $2)");
        let statement = quoted.bind(login).bind(password).fetch_one(&mut *transaction).await?;
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    admin.close().await?;
    Ok(())
}

/// Runs `migrations/log_relay.sql` in the database of `admin_url`: the services may read the write-ahead log.
pub async fn allow_log_relay(admin_url: &str) -> Result<()> {
    // PostgreSQL refuses concurrent changes of one role, and tests of one server run at the same time.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());
    let _one = ONE_AT_A_TIME.lock().await;
    let script = include_str!("../../../migrations/log_relay.sql");
    sql::execute(admin_url, script, BOOTSTRAP_DEADLINE).await.context("failed to run log_relay.sql")
}

/// Waits until the database accepts connections. The error says why the last attempt failed.
pub async fn wait_for_database(url: &str, deadline: Duration) -> Result<()> {
    eventually("the database to accept connections", deadline, async || {
        PgConnection::connect(url).await?.close().await?;
        Ok(Some(()))
    })
    .await
}
