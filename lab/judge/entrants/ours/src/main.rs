//! The product's relay without a service around it: `outbox-relay` relays, `outbox-relay set-up` creates the tables.

use std::{env, time::Duration};

use anyhow::{Context as _, Result};
use database::{DatabaseUrl, Pool, PoolKind};
use outbox::{MIGRATIONS, Relay, RelayOptions, Wake};
use rabbitmq::{ConfirmingPublisher, ConnectionStatus, Endpoint};
use sqlx::ConnectOptions as _;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// The services' default.
const CONFIRM_DEADLINE: Duration = Duration::from_secs(10);
/// The services' default: while one waits for the broker's confirms, the other reads and marks.
const RELAYS: usize = 2;
/// One for each relay, and one while another is being given up.
const CONNECTIONS: u32 = 3;

#[tokio::main]
async fn main() -> Result<()> {
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
        let relay = Relay::new(pool.clone(), publisher, RelayOptions::default());
        tasks.spawn(relay.run(wake.clone(), stop.clone()));
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
