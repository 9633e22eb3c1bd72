//! A database of one's own, copied from a template.

use std::time::Duration;

use anyhow::{Context as _, Result};
use reqwest::Url;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::time::timeout;
use uuid::Uuid;

use crate::bootstrap::{DatabaseUrls, Passwords, bootstrap};
use crate::servers;

/// The first test of a run makes the template while the others wait for it.
const MADE_WITHIN: Duration = Duration::from_secs(60);
/// A destructor that waits longer would be noticed; the server forgets everything at its own end anyway.
const DROPPED_WITHIN: Duration = Duration::from_secs(2);

/// A database for one test: the logins `orders`, `inventory`, `billing`, `provider` and `auditor`, and their empty
/// schemas. Dropped with the value, as far as that is possible.
#[derive(Debug)]
pub struct TestDatabase {
    name: String,
    admin: Url,
    urls: DatabaseUrls,
}

/// A new database on the shared server.
pub async fn database() -> Result<TestDatabase> {
    let server = servers::postgres().await?;
    timeout(MADE_WITHIN, create(&server.admin_url)).await.context("no new database within a minute")?
}

impl TestDatabase {
    /// The URL for a login: `orders`, `inventory`, `billing`, `provider` or `auditor`.
    pub fn url(&self, login: &str) -> String {
        match login {
            "orders" => self.urls.orders.clone(),
            "inventory" => self.urls.inventory.clone(),
            "billing" => self.urls.billing.clone(),
            "provider" => self.urls.provider.clone(),
            "auditor" => self.urls.auditor.clone(),
            // Some other login: the connection will be refused, with the server's own reason.
            _ => self.urls.orders.replacen("orders", login, 1),
        }
    }

    /// The URLs for all five logins.
    pub fn urls(&self) -> &DatabaseUrls {
        &self.urls
    }

    /// The superuser's URL of this database.
    pub fn admin_url(&self) -> String {
        with_database(&self.admin, &self.name)
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let (admin, name) = (self.admin.clone(), self.name.clone());
        best_effort(async move {
            let mut admin = PgConnection::connect(&with_database(&admin, "postgres")).await?;
            let statement = format!(r#"drop database if exists "{name}" with (force)"#);
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut admin).await?;
            Ok(())
        });
    }
}

async fn create(admin_url: &str) -> Result<TestDatabase> {
    let admin = Url::parse(admin_url).context("the server's URL")?;
    let mut connection = PgConnection::connect(&with_database(&admin, "postgres")).await?;
    // The services' password is the superuser's, so that other processes of the same run can tell it from the URL.
    let passwords = Passwords::all(admin.password().unwrap_or("shop"));
    let template = template(&admin, &mut connection, &passwords).await?;
    let name = format!("test_{}", Uuid::now_v7().simple());
    let statement = format!(r#"create database "{name}" template "{template}""#);
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
    // `create database` copies what is in the template, not the rights to the database itself.
    let grants = format!(
        r#"revoke all on database "{name}" from public;
           grant connect on database "{name}" to orders, inventory, billing, provider, auditor"#
    );
    sqlx::raw_sql(AssertSqlSafe(grants)).execute(&mut connection).await?;
    connection.close().await?;
    let urls = DatabaseUrls::new(&with_database(&admin, &name), &passwords)?;
    Ok(TestDatabase { name, admin, urls })
}

/// The template is made once per server, by whichever process comes first. Advisory locks are local to a database:
/// `postgres` is the one in which all of them meet.
async fn template(admin: &Url, connection: &mut PgConnection, passwords: &Passwords) -> Result<&'static str> {
    const NAME: &str = "testbed_template";
    const IN_THE_MAKING: &str = "testbed_template_in_the_making";

    sqlx::query("select pg_advisory_lock(hashtext('testbed.template'))").execute(&mut *connection).await?;
    let exists = sqlx::query_scalar::<_, bool>("select exists (select from pg_database where datname = $1)");
    if !exists.bind(NAME).fetch_one(&mut *connection).await? {
        // Under another name until it is complete: whoever made it may be killed half way.
        let drop = format!("drop database if exists {IN_THE_MAKING} with (force)");
        sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut *connection).await?;
        let create = format!("create database {IN_THE_MAKING}");
        sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut *connection).await?;
        bootstrap(&with_database(admin, IN_THE_MAKING), passwords).await?;
        let rename = format!("alter database {IN_THE_MAKING} rename to {NAME}");
        sqlx::raw_sql(AssertSqlSafe(rename)).execute(&mut *connection).await?;
    }
    sqlx::query("select pg_advisory_unlock(hashtext('testbed.template'))").execute(&mut *connection).await?;
    Ok(NAME)
}

fn with_database(admin: &Url, name: &str) -> String {
    let mut url = admin.clone();
    url.set_path(name);
    url.into()
}

/// Runs a clean-up from a destructor: on a thread of its own, because the runtime that we are dropped in may be at
/// its end. Failure is not reported; the server itself is about to go.
pub(crate) fn best_effort(work: impl Future<Output = Result<()>> + Send + 'static) {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() {
            let _ = runtime.block_on(async { timeout(DROPPED_WITHIN, work).await });
        }
        let _ = done.send(());
    });
    // The process may end right after its last test: without a little patience nothing would ever be cleaned up.
    let _ = wait.recv_timeout(DROPPED_WITHIN);
}
