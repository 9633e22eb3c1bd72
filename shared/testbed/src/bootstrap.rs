//! Logins, schemas and passwords: what an administrator prepares before the first service starts.

use std::time::Duration;

use anyhow::{Context as _, Result};
use reqwest::Url;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::time::timeout;

use crate::eventually;

/// A bootstrap may wait for another one that runs at the same time.
const DONE_WITHIN: Duration = Duration::from_secs(60);

/// The passwords of the five logins that `migrations/bootstrap.sql` makes.
#[derive(Clone)]
pub struct Passwords {
    /// Of the order service.
    pub orders: String,
    /// Of the inventory service.
    pub inventory: String,
    /// Of the billing service.
    pub billing: String,
    /// Of the payment provider.
    pub provider: String,
    /// Of the one who may read everything and write nothing.
    pub auditor: String,
}

impl Passwords {
    /// The same password for all five: fit for servers that live as long as a test.
    pub fn all(password: &str) -> Self {
        let password = || password.to_owned();
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
    /// For the order service.
    pub orders: String,
    /// For the inventory service.
    pub inventory: String,
    /// For the billing service.
    pub billing: String,
    /// For the payment provider.
    pub provider: String,
    /// For the conservation sum.
    pub auditor: String,
}

impl DatabaseUrls {
    /// The administrator's URL with the name and password of each login in turn.
    pub fn new(admin_url: &str, passwords: &Passwords) -> Result<Self> {
        let admin = Url::parse(admin_url).context("not a database URL")?;
        let url = |login: &str, password: &str| {
            let mut url = admin.clone();
            let named = url.set_username(login).and_then(|()| url.set_password(Some(password)));
            named.map(|()| String::from(url)).map_err(|()| anyhow::anyhow!("a database URL without a host"))
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
    timeout(DONE_WITHIN, run(admin_url, passwords)).await.context("the bootstrap took too long")?
}

async fn run(admin_url: &str, passwords: &Passwords) -> Result<()> {
    let mut admin = PgConnection::connect(admin_url).await.context("cannot connect as administrator")?;
    let script = sqlx::raw_sql(include_str!("../../../migrations/bootstrap.sql"));
    script.execute(&mut admin).await.context("bootstrap.sql failed")?;
    // One transaction, and the same lock as in the script: two who alter one role at once get an error.
    let mut transaction = admin.begin().await?;
    sqlx::query("select pg_advisory_xact_lock(hashtext('shop.bootstrap'))")
        .execute(&mut *transaction)
        .await?;
    for (login, password) in passwords.each() {
        // A password cannot be a parameter of `alter role`: the server quotes it for us.
        let quoted = sqlx::query_scalar::<_, String>("select format('alter role %I password %L', $1, $2)");
        let statement = quoted.bind(login).bind(password).fetch_one(&mut *transaction).await?;
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    admin.close().await?;
    Ok(())
}

/// Returns when the database takes connections, or says why it did not until the deadline.
pub async fn wait_for_database(url: &str, deadline: Duration) -> Result<()> {
    eventually("the database to take connections", deadline, async || {
        PgConnection::connect(url).await?.close().await?;
        Ok(Some(()))
    })
    .await
}
