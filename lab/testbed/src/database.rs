//! A database for one test, copied from a template.

use std::time::Duration;

use anyhow::{Context as _, Result};
use reqwest::Url;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::time::timeout;
use uuid::Uuid;

use crate::async_drop::block_on_cleanup;
use crate::bootstrap::{DatabaseUrls, bootstrap};
use crate::shared_servers;

/// The first test of a run creates the template while the others wait for it.
const CREATE_DEADLINE: Duration = Duration::from_secs(60);

/// A database for one test, with the logins `orders`, `inventory`, `billing`, `provider` and `auditor` and their empty
/// schemas. When the value is dropped, the database is dropped too, unless the server does not answer.
#[derive(Debug)]
pub struct TestDatabase {
    name: String,
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
    /// The URL for a login: see [`DatabaseUrls::of`].
    pub fn url(&self, login: &str) -> String {
        self.urls.of(login)
    }

    pub fn urls(&self) -> &DatabaseUrls {
        &self.urls
    }

    /// The superuser's URL of this database.
    pub fn admin_url(&self) -> String {
        self.urls.admin().to_owned()
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let (admin_url, drop) = (self.admin_url(), format!(r#"drop database "{}" with (force)"#, self.name));
        block_on_cleanup(async move {
            let mut admin = PgConnection::connect(&with_database(&admin_url, "postgres")?).await?;
            execute(&mut admin, drop).await
        });
    }
}

async fn create(admin_url: &str) -> Result<TestDatabase> {
    let mut connection = PgConnection::connect(&with_database(admin_url, "postgres")?).await?;
    let template = ensure_template(admin_url, &mut connection).await?;
    let name = format!("test_{}", Uuid::now_v7().simple());
    execute(&mut connection, format!(r#"create database "{name}" template "{template}""#)).await?;
    // `create database` copies what is in the template, but not the rights on the database itself.
    let grants = format!(
        r#"revoke all on database "{name}" from public;
           grant connect on database "{name}" to orders, inventory, billing, provider, auditor"#
    );
    execute(&mut connection, grants).await?;
    connection.close().await?;
    Ok(TestDatabase { urls: urls_of(admin_url, &name)?, name })
}

/// Creates the template unless it exists, and returns its name. The first process that comes here creates it, once per
/// server.
///
/// Advisory locks are local to a database: all processes take this one in `postgres`.
async fn ensure_template(admin_url: &str, connection: &mut PgConnection) -> Result<&'static str> {
    const TEMPLATE: &str = "testbed_template";
    // The template has this name until it is complete, because its creator may be killed before.
    const UNFINISHED: &str = "testbed_template_unfinished";

    sqlx::query("select pg_advisory_lock(hashtext('testbed.template'))").execute(&mut *connection).await?;
    let exists = sqlx::query_scalar::<_, bool>("select exists (select from pg_database where datname = $1)");
    if !exists.bind(TEMPLATE).fetch_one(&mut *connection).await? {
        execute(connection, format!("drop database if exists {UNFINISHED} with (force)")).await?;
        execute(connection, format!("create database {UNFINISHED}")).await?;
        bootstrap(&urls_of(admin_url, UNFINISHED)?).await?;
        execute(connection, format!("alter database {UNFINISHED} rename to {TEMPLATE}")).await?;
    }
    sqlx::query("select pg_advisory_unlock(hashtext('testbed.template'))").execute(&mut *connection).await?;
    Ok(TEMPLATE)
}

async fn execute(connection: &mut PgConnection, statements: String) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statements)).execute(connection).await?;
    Ok(())
}

/// The logins have the superuser's password, so that other processes of the same run can read it from the URL.
fn urls_of(admin_url: &str, database: &str) -> Result<DatabaseUrls> {
    let password = Url::parse(admin_url)?.password().unwrap_or("shop").to_owned();
    DatabaseUrls::new(&with_database(admin_url, database)?, |_| Ok(password.clone()))
}

fn with_database(admin_url: &str, name: &str) -> Result<String> {
    let mut url = Url::parse(admin_url).context("the server's URL is invalid")?;
    url.set_path(name);
    Ok(url.into())
}
