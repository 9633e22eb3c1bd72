//! A database with a room for the mailer, and what is published for it.

use std::time::Duration;

use anyhow::Context as _;
use broker::{Endpoint, Link, Publisher};
use events::{
    Draft, OrderConfirmed, TraceContext,
    transport::{Outcome, Outgoing, Publisher as _},
};
use mailer::MIGRATIONS;
use reqwest::Url;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool, migrate::Migrator};
use testbed::{TestDatabase, eventually};
use uuid::Uuid;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Room {
    pub(crate) database: TestDatabase,
    pub(crate) pool: PgPool,
}

/// Roles belong to the whole server: two who alter one at the same time get an error.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

impl Room {
    /// What an administrator prepares, with the script that the page tells them to run.
    pub(crate) async fn new() -> anyhow::Result<Self> {
        let database = testbed::database().await?;
        let url = database.url("mailer");
        let parsed = Url::parse(&url)?;
        let password = parsed.password().context("logins of tests have passwords")?;
        let one_at_a_time = ONE_AT_A_TIME.lock().await;
        let mut admin = PgConnection::connect(&database.admin_url()).await?;
        sqlx::raw_sql(include_str!("../../bootstrap.sql")).execute(&mut admin).await?;
        let statement = format!("alter role mailer password '{password}'");
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut admin).await?;
        admin.close().await?;
        drop(one_at_a_time);
        let all = MIGRATIONS.iter().flat_map(|migrator| migrator.iter().cloned()).collect();
        let pool = PgPool::connect(&url).await?;
        Migrator::with_migrations(all).run(&pool).await?;
        Ok(Self { database, pool })
    }

    /// Which orders have which mails, sorted.
    pub(crate) async fn mails(&self) -> anyhow::Result<Vec<(Uuid, String)>> {
        let query = sqlx::query_as("select order_id, kind from mails order by order_id, kind");
        Ok(query.fetch_all(&self.pool).await?)
    }

    /// Waits for exactly these mails.
    pub(crate) async fn has(&self, expected: &[(Uuid, String)]) -> anyhow::Result<()> {
        let mut expected = expected.to_vec();
        expected.sort();
        eventually("the mails to be written", PATIENCE, async || {
            let mails = self.mails().await?;
            anyhow::ensure!(mails == expected, "{} of {}: {mails:?}", mails.len(), expected.len());
            Ok(Some(()))
        })
        .await
    }
}

/// What the order service writes when both have said yes.
pub(crate) fn confirmed(order_id: Uuid) -> Draft {
    let aggregate = ("order", order_id, 2);
    Draft::of("/orders", aggregate, &TraceContext::root(), &OrderConfirmed { order_id }).unwrap()
}

/// Publishes as a relay does.
pub(crate) async fn publish(amqp_url: &str, events: &[Draft]) -> anyhow::Result<()> {
    publish_over(&mut publisher(amqp_url).await?, events).await
}

/// Connected already.
pub(crate) async fn publisher(amqp_url: &str) -> anyhow::Result<Publisher> {
    let endpoint = Endpoint::new(amqp_url, "test")?;
    let mut publisher = Publisher::new(endpoint, Link::new("test"), Duration::from_secs(10));
    publisher.ready().await?;
    Ok(publisher)
}

pub(crate) async fn publish_over(publisher: &mut Publisher, events: &[Draft]) -> anyhow::Result<()> {
    let outgoing = |event: &Draft| Outgoing {
        id: event.event_id,
        event_type: event.event_type.into(),
        body: event.payload.clone().into_bytes(),
        traceparent: None,
    };
    let outcomes = publisher.publish(&events.iter().map(outgoing).collect::<Vec<_>>()).await;
    anyhow::ensure!(outcomes.iter().all(|outcome| *outcome == Outcome::Confirmed), "{outcomes:?}");
    Ok(())
}
