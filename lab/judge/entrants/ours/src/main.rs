//! The product's relay without a service around it: `outbox-relay` relays, `outbox-relay set-up` creates the tables.

use std::{env, time::Duration};

use anyhow::{Context as _, Result};
use database::{DatabaseUrl, Pool, PoolKind};
use outbox::{MIGRATIONS, Relay, RelayOptions, Wake};
use rabbitmq::{ConfirmingPublisher, ConnectionStatus, Endpoint};
use sqlx::ConnectOptions as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The services' default.
const CONFIRM_DEADLINE: Duration = Duration::from_secs(10);
/// A relay needs one connection, and a second one while the first is being given up.
const CONNECTIONS: u32 = 2;

#[tokio::main]
async fn main() -> Result<()> {
    let url: DatabaseUrl = variable("DATABASE_URL")?.parse().map_err(anyhow::Error::msg)?;
    if env::args().nth(1).as_deref() == Some("set-up") {
        let mut connection = url.options().connect().await.context("failed to connect to the database")?;
        return MIGRATIONS.run(&mut connection).await.context("failed to create the outbox");
    }
    let pool = Pool::new(&url, "outbox-relay", CONNECTIONS, PoolKind::AsyncCommit);
    let endpoint = Endpoint::new(&variable("AMQP_URL")?, "outbox-relay")?;
    let publisher = ConfirmingPublisher::new(endpoint, ConnectionStatus::new("publisher"), CONFIRM_DEADLINE);
    let relay = Relay::new(pool.clone(), publisher, RelayOptions::default());
    let (wake, stop) = (Wake::new(), CancellationToken::new());
    let mut terminate = signal(SignalKind::terminate())?;
    let relaying = tokio::spawn(relay.run(wake.clone(), stop.clone()));
    let listening = tokio::spawn(outbox::listen(pool, wake, stop.clone()));
    println!("RELAYING");
    terminate.recv().await;
    stop.cancel();
    relaying.await?;
    Ok(listening.await?)
}

fn variable(name: &str) -> Result<String> {
    env::var(name).with_context(|| format!("failed to read {name}: it is not set"))
}
