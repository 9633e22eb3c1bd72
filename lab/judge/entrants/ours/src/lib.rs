//! The product's relay without a service around it, with the services' default settings.

use std::{env, time::Duration};

use anyhow::{Context as _, Result};
use database::{DatabaseUrl, Pool, PoolKind};
use messaging::Wake;
use outbox::MIGRATIONS;
use rabbitmq::{ConfirmingPublisher, ConnectionStatus, Endpoint};
use sqlx::ConnectOptions as _;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

const CONFIRM_DEADLINE: Duration = Duration::from_secs(10);
/// While one waits for the broker's confirms, the other reads and marks.
const RELAYS: usize = 2;
/// One for each relay, and one while another is being given up.
const CONNECTIONS: u32 = 3;

/// Relays until SIGTERM, or with the argument `set-up` creates the tables. `relay` runs one relay until it is stopped.
///
/// # Errors
/// When a setting is missing or invalid, or a task has ended by itself.
pub async fn run<R>(relay: impl Fn(Pool, ConfirmingPublisher, Wake, CancellationToken) -> R) -> Result<()>
where
    R: Future<Output = ()> + Send + 'static,
{
    let url: DatabaseUrl = variable("DATABASE_URL")?.parse().map_err(anyhow::Error::msg)?;
    if env::args().nth(1).as_deref() == Some("set-up") {
        let mut connection = url.options().connect().await.context("failed to connect to the database")?;
        return MIGRATIONS.run(&mut connection).await.context("failed to create the outbox");
    }
    let pool = Pool::new(&url, "outbox-relay", CONNECTIONS, PoolKind::AsyncCommit);
    let endpoint = Endpoint::new(&variable("AMQP_URL")?, "outbox-relay")?;
    let (wake, stop) = (Wake::new(), CancellationToken::new());
    let mut tasks = JoinSet::new();
    for status in ConnectionStatus::of_users("publisher", RELAYS) {
        let publisher = ConfirmingPublisher::new(endpoint.clone(), status, CONFIRM_DEADLINE);
        tasks.spawn(relay(pool.clone(), publisher, wake.clone(), stop.clone()));
    }
    tasks.spawn(outbox::listen(pool, wake, stop.clone()));
    let mut terminate = signal(SignalKind::terminate())?;
    println!("RELAYING");
    tokio::select! {
        _ = terminate.recv() => stop.cancel(),
        // None of them ends by itself.
        Some(ended) = tasks.join_next() => return ended.context("a task has ended"),
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("a task has ended")?;
    }
    Ok(())
}

fn variable(name: &str) -> Result<String> {
    env::var(name).with_context(|| format!("failed to read {name}: it is not set"))
}
