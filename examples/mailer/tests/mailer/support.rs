//! A database with the mailer's schema, and a publisher of events.

use std::time::Duration;

use anyhow::Context as _;
use database::{Pool, PoolKind};
use events::{NewEvent, OrderConfirmed, TraceContext};
use mailer::MIGRATIONS;
use messaging::{Outgoing, PublishOutcome, Publisher as _};
use rabbitmq::{ConfirmingPublisher, ConnectionStatus, Endpoint};
use reqwest::Url;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, migrate::Migrator};
use testbed::{TestDatabase, eventually};
use uuid::Uuid;

/// How long a test waits for a condition, on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct MailerDatabase {
    pub(crate) database: TestDatabase,
    pub(crate) pool: Pool,
}

/// Roles belong to the whole server: of two sessions that alter one role at the same time, one gets an error.
static BOOTSTRAP_LOCK: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

impl MailerDatabase {
    /// Creates a database as an administrator does, with the mailer's `bootstrap.sql`, and the mailer's tables.
    pub(crate) async fn create() -> anyhow::Result<Self> {
        let database = testbed::database().await?;
        let url = database.url("mailer");
        let parsed = Url::parse(&url)?;
        let password = parsed.password().context("the URL has no password")?;
        let lock = BOOTSTRAP_LOCK.lock().await;
        let mut admin = PgConnection::connect(&database.admin_url()).await?;
        sqlx::raw_sql(include_str!("../../bootstrap.sql")).execute(&mut admin).await?;
        let statement = format!("alter role mailer password '{password}'");
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut admin).await?;
        admin.close().await?;
        drop(lock);
        let all = MIGRATIONS.iter().flat_map(|migrator| migrator.iter().cloned()).collect();
        let url = url.parse().map_err(anyhow::Error::msg)?;
        let pool = Pool::new(&url, "test", 10, PoolKind::Transactions);
        let mut session = pool.acquire().await?;
        Migrator::with_migrations(all).run(&mut *session).await?;
        session.finish();
        Ok(Self { database, pool })
    }

    /// All mails as order and kind, sorted.
    pub(crate) async fn mails(&self) -> anyhow::Result<Vec<(Uuid, String)>> {
        let query = sqlx::query_as("select order_id, kind from mails order by order_id, kind");
        Ok(query.fetch_all(&self.pool).await?)
    }

    /// Waits until the table holds exactly these mails.
    pub(crate) async fn wait_for_mails(&self, expected: &[(Uuid, String)]) -> anyhow::Result<()> {
        let mut expected = expected.to_vec();
        expected.sort();
        eventually("the mails to be written", DEADLINE, async || {
            let mails = self.mails().await?;
            anyhow::ensure!(mails == expected, "{} of {}: {mails:?}", mails.len(), expected.len());
            Ok(Some(()))
        })
        .await
    }
}

/// The event by which the order service confirms an order.
pub(crate) fn confirmed(order_id: Uuid) -> NewEvent {
    NewEvent::of(order_id, 2, &TraceContext::root(), &OrderConfirmed { order_id }).unwrap()
}

/// A connected publisher, like a relay's.
pub(crate) async fn publisher(amqp_url: &str) -> anyhow::Result<ConfirmingPublisher> {
    let endpoint = Endpoint::new(amqp_url, "test")?;
    let mut publisher =
        ConfirmingPublisher::new(endpoint, ConnectionStatus::new("test"), Duration::from_secs(10));
    publisher.ready().await?;
    Ok(publisher)
}

/// Publishes the events in order, and fails if the broker does not confirm all of them.
pub(crate) async fn publish(publisher: &mut ConfirmingPublisher, events: &[NewEvent]) -> anyhow::Result<()> {
    let outgoing = |event: &NewEvent| Outgoing {
        id: event.event_id,
        event_type: event.event_type.into(),
        lane: event.lane,
        body: event.payload.clone().into_bytes(),
        traceparent: None,
    };
    let batch: Vec<_> = events.iter().map(outgoing).collect();
    let outcomes = publisher.publish(&batch.iter().collect::<Vec<_>>()).await;
    anyhow::ensure!(outcomes.iter().all(|outcome| *outcome == PublishOutcome::Confirmed), "{outcomes:?}");
    Ok(())
}
