//! A private PostgreSQL with the services' tables and without services, for what only the database decides.

use anyhow::{Context as _, Result};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use testbed::{DatabaseUrls, Home, Passwords, Postgres};

use crate::{conditions::Conditions, other_work, setup::Setup};

/// The server, stopped when the value is dropped.
pub(crate) struct BenchDatabase {
    postgres: Postgres,
    urls: DatabaseUrls,
    home: Home,
    setup: Setup,
    busy_before: Option<f64>,
}

impl BenchDatabase {
    /// Starts the server and applies the migrations.
    pub(crate) async fn start(setup: &Setup) -> Result<Self> {
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
        let busy_before = other_work::share(setup).await;
        Ok(Self { postgres, urls, home, setup: setup.clone(), busy_before })
    }

    /// Returns the database's URL with the order service's login.
    pub(crate) fn url(&self) -> &str {
        &self.urls.orders
    }

    /// Opens a session with the order service's login and its planner settings.
    pub(crate) async fn connect(&self) -> Result<PgConnection> {
        let session = PgConnection::connect(&self.urls.orders).await;
        let mut session = session.context("failed to connect to the database")?;
        sqlx::query("set jit = off").execute(&mut session).await?;
        Ok(session)
    }

    /// Writes everything to disk, so that no measurement pays for what was written before it.
    pub(crate) async fn checkpoint(&self) -> Result<()> {
        let mut admin = PgConnection::connect(&self.postgres.admin_url("shop")).await?;
        sqlx::query("checkpoint").execute(&mut admin).await.context("failed to write a checkpoint")?;
        admin.close().await.context("failed to close a connection to the database")
    }

    /// Reads the conditions in force.
    pub(crate) async fn conditions(&self) -> Result<Conditions> {
        let busy = [self.busy_before, other_work::share(&self.setup).await];
        Conditions::read(&mut self.connect().await?, None, self.home, busy).await
    }
}
