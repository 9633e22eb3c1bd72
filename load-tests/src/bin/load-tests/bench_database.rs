//! A PostgreSQL of one's own with the services' tables, and no services: for what only the database decides.

use anyhow::{Context as _, Result};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use testbed::{DatabaseUrls, Home, Passwords, Postgres};

use crate::{conditions::Conditions, other_work};

/// Gone when it is dropped.
pub(crate) struct BenchDatabase {
    postgres: Postgres,
    urls: DatabaseUrls,
    home: Home,
    busy_before: Option<f64>,
}

impl BenchDatabase {
    /// Starts it, and applies the migrations.
    ///
    /// # Errors
    /// When something is missing or does not start; says what.
    pub(crate) async fn start() -> Result<Self> {
        eprintln!("starting PostgreSQL");
        let home = Home::choose().await?;
        let postgres = Postgres::private_in(home).await?;
        let mut admin = PgConnection::connect(&postgres.admin_url("postgres")).await?;
        sqlx::query(AssertSqlSafe("create database shop".to_owned())).execute(&mut admin).await?;
        admin.close().await?;
        let (admin_url, passwords) = (postgres.admin_url("shop"), Passwords::all("benchmark"));
        testbed::bootstrap(&admin_url, &passwords).await?;
        let urls = DatabaseUrls::new(&admin_url, &passwords)?;
        testbed::migrate(&urls).await?;
        let busy_before = other_work::share().await;
        Ok(Self { postgres, urls, home, busy_before })
    }

    /// The database, as the order service knows it.
    pub(crate) fn url(&self) -> &str {
        &self.urls.orders
    }

    /// A session as the order service has them.
    ///
    /// # Errors
    /// When the database does not answer.
    pub(crate) async fn connect(&self) -> Result<PgConnection> {
        let mut session = PgConnection::connect(&self.urls.orders).await.context("cannot connect")?;
        sqlx::query("set jit = off").execute(&mut session).await?;
        Ok(session)
    }

    /// Puts everything on disk, so that what was written before is not paid for while something is measured.
    ///
    /// # Errors
    /// When the database does not answer.
    pub(crate) async fn checkpoint(&self) -> Result<()> {
        let mut admin = PgConnection::connect(&self.postgres.admin_url("shop")).await?;
        sqlx::query("checkpoint").execute(&mut admin).await?;
        admin.close().await.context("cannot say goodbye to the database")
    }

    /// What is in force.
    ///
    /// # Errors
    /// When the database does not say.
    pub(crate) async fn conditions(&self) -> Result<Conditions> {
        let busy = [self.busy_before, other_work::share().await];
        Conditions::read(&mut self.connect().await?, None, self.home, busy).await
    }
}
