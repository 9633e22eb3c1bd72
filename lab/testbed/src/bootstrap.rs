//! Creates logins and schemas and sets passwords, as an administrator does before the first service starts.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use reqwest::Url;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::{sync::Mutex, time::timeout};

use crate::{scram, sql};

/// A bootstrap may have to wait for another one that runs at the same time.
const BOOTSTRAP_DEADLINE: Duration = Duration::from_secs(60);

/// The logins that `migrations/bootstrap.sql` creates. The auditor may read everything and write nothing.
const LOGINS: [&str; 5] = ["orders", "inventory", "billing", "provider", "auditor"];

/// The URLs of one database: the administrator's, and one for each login.
#[derive(Clone, Debug)]
pub struct DatabaseUrls {
    admin: Url,
    /// Each login with its password.
    logins: Vec<(&'static str, String)>,
}

impl DatabaseUrls {
    /// Takes the administrator's URL, and the password of each login.
    pub fn new(admin_url: &str, password: impl Fn(&str) -> Result<String>) -> Result<Self> {
        let admin = Url::parse(admin_url).context("the database URL is invalid")?;
        ensure!(admin.has_host(), "the database URL has no host");
        let logins = LOGINS.into_iter().map(|login| Ok((login, password(login)?))).collect::<Result<_>>()?;
        Ok(Self { admin, logins })
    }

    /// The URL for a login: `orders`, `inventory`, `billing`, `provider`, `auditor`, or one that a test creates itself, with the
    /// password of `orders`. If it does not, the server refuses the connection and says why.
    pub fn of(&self, login: &str) -> String {
        let known = self.logins.iter().find(|(known, _)| *known == login).or(self.logins.first());
        let mut url = self.admin.clone();
        // Fails only for a URL without a host.
        let _ =
            url.set_username(login).and_then(|()| url.set_password(known.map(|(_, password)| &**password)));
        url.into()
    }

    /// The administrator's URL.
    pub fn admin(&self) -> &str {
        self.admin.as_str()
    }
}

/// Runs `migrations/bootstrap.sql` in the database of these URLs and sets their passwords. Safe to run again.
pub async fn bootstrap(urls: &DatabaseUrls) -> Result<()> {
    timeout(BOOTSTRAP_DEADLINE, run(urls))
        .await
        .with_context(|| format!("the bootstrap took more than {} s", BOOTSTRAP_DEADLINE.as_secs()))?
}

async fn run(urls: &DatabaseUrls) -> Result<()> {
    let mut admin =
        PgConnection::connect(urls.admin()).await.context("failed to connect as the administrator")?;
    let script = sqlx::raw_sql(include_str!("../../../migrations/bootstrap.sql"));
    script.execute(&mut admin).await.context("failed to run bootstrap.sql")?;
    // One transaction, with the lock that the script takes: PostgreSQL refuses concurrent changes of one role.
    let mut transaction = admin.begin().await?;
    sqlx::query("select pg_advisory_xact_lock(hashtext('shop.bootstrap'))")
        .execute(&mut *transaction)
        .await?;
    for (login, password) in &urls.logins {
        sqlx::raw_sql(AssertSqlSafe(new_password(login, password))).execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    admin.close().await?;
    Ok(())
}

/// The statement that gives a login this password, without showing it. Sessions that are open stay open.
pub fn new_password(login: &str, password: &str) -> String {
    // Neither needs quoting: a login is one of ours, and a verifier has no quotes.
    format!("alter role {login} password '{}'", scram::verifier(password))
}

/// Runs `migrations/log_relay.sql` in the database of `admin_url`: the services may read the write-ahead log.
pub async fn allow_log_relay(admin_url: &str) -> Result<()> {
    // PostgreSQL refuses concurrent changes of one role, and tests of one server run at the same time.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());
    let _one = ONE_AT_A_TIME.lock().await;
    let script = include_str!("../../../migrations/log_relay.sql");
    sql::execute(admin_url, script, BOOTSTRAP_DEADLINE).await.context("failed to run log_relay.sql")
}
