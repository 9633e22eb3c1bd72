//! A database for one test, copied from a template.

use std::time::Duration;

use anyhow::{Context as _, Result};
use reqwest::Url;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::time::timeout;
use uuid::Uuid;

use crate::async_drop::block_on_cleanup;
use crate::bootstrap::{DatabaseUrls, Passwords, bootstrap};
use crate::shared_servers;

/// The first test of a run creates the template while the others wait for it.
const CREATE_DEADLINE: Duration = Duration::from_secs(60);

/// A database for one test, with the logins `orders`, `inventory`, `billing`, `provider` and `auditor` and their empty
/// schemas. When the value is dropped, the database is dropped too, unless the server does not answer.
#[derive(Debug)]
pub struct TestDatabase {
    name: String,
    admin: Url,
    urls: DatabaseUrls,
}

/// Creates a database on the shared server.
pub async fn database() -> Result<TestDatabase> {
    database_on(&shared_servers::postgres().await?).await
}

/// Creates a database on the server of the superuser's URL.
pub async fn database_on(admin_url: &str) -> Result<TestDatabase> {
    let created = timeout(CREATE_DEADLINE, create(admin_url)).await;
    created
        .with_context(|| format!("it took more than {} s", CREATE_DEADLINE.as_secs()))
        .flatten()
        .context("failed to create a test database")
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
            // A login that the test creates itself. If it does not, the server refuses the connection and says why.
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
        block_on_cleanup(async move {
            let mut admin = PgConnection::connect(&with_database(&admin, "postgres")).await?;
            execute(&mut admin, format!(r#"drop database if exists "{name}" with (force)"#)).await
        });
    }
}

async fn create(admin_url: &str) -> Result<TestDatabase> {
    let admin = Url::parse(admin_url).context("the server's URL is invalid")?;
    let mut connection = PgConnection::connect(&with_database(&admin, "postgres")).await?;
    // The services use the superuser's password, so that other processes of the same run can read it from the URL.
    let passwords = Passwords::all(admin.password().unwrap_or("shop"));
    let template = ensure_template(&admin, &mut connection, &passwords).await?;
    let name = format!("test_{}", Uuid::now_v7().simple());
    execute(&mut connection, format!(r#"create database "{name}" template "{template}""#)).await?;
    // `create database` copies what is in the template, but not the rights on the database itself.
    let grants = format!(
        r#"revoke all on database "{name}" from public;
           grant connect on database "{name}" to orders, inventory, billing, provider, auditor"#
    );
    execute(&mut connection, grants).await?;
    connection.close().await?;
    let urls = DatabaseUrls::new(&with_database(&admin, &name), &passwords)?;
    Ok(TestDatabase { name, admin, urls })
}

/// Creates the template unless it exists, and returns its name. The first process that comes here creates it, once per
/// server.
///
/// Advisory locks are local to a database: all processes take this one in `postgres`.
async fn ensure_template(
    admin: &Url,
    connection: &mut PgConnection,
    passwords: &Passwords,
) -> Result<&'static str> {
    const TEMPLATE: &str = "testbed_template";
    // The template has this name until it is complete, because its creator may be killed before.
    const UNFINISHED: &str = "testbed_template_unfinished";

    sqlx::query("select pg_advisory_lock(hashtext('testbed.template'))").execute(&mut *connection).await?;
    let exists = sqlx::query_scalar::<_, bool>("select exists (select from pg_database where datname = $1)");
    if !exists.bind(TEMPLATE).fetch_one(&mut *connection).await? {
        execute(connection, format!("drop database if exists {UNFINISHED} with (force)")).await?;
        execute(connection, format!("create database {UNFINISHED}")).await?;
        bootstrap(&with_database(admin, UNFINISHED), passwords).await?;
        execute(connection, format!("alter database {UNFINISHED} rename to {TEMPLATE}")).await?;
    }
    sqlx::query("select pg_advisory_unlock(hashtext('testbed.template'))").execute(&mut *connection).await?;
    Ok(TEMPLATE)
}

async fn execute(connection: &mut PgConnection, statements: String) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statements)).execute(connection).await?;
    Ok(())
}

fn with_database(admin: &Url, name: &str) -> String {
    let mut url = admin.clone();
    url.set_path(name);
    url.into()
}
