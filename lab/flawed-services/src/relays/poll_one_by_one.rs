//! The relay of most tutorials: a timer, a query, and for each event a publish and an update.
//!
//! It loses nothing. It is as fast as the broker's confirms and the disk's flushes, one after the other, and half a second
//! late on average. Two instances of it publish every event twice.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use database::{Pool, PoolKind};
use messaging::{Outgoing, PublishOutcome, Publisher as _};
use rabbitmq::{ConfirmingPublisher, ConnectionStatus};
use service::{Process, RelayTasks};
use sqlx::Row as _;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// For the relay, the backlog count, and a spare one.
const CONNECTIONS: u32 = 3;

pub(crate) fn start(tasks: &RelayTasks, process: &mut Process) {
    let status = ConnectionStatus::new("publisher");
    let publisher = ConfirmingPublisher::new(tasks.endpoint.clone(), status, tasks.settings.confirm_deadline);
    // Its marks wait for the disk: a relay like this one is written without a thought of `synchronous_commit`.
    let (pool, stop) = (process.pool("relay", CONNECTIONS, PoolKind::Statements), process.stop());
    process.spawn("relay", run(pool.clone(), publisher, stop.clone()));
    process.spawn("backlog", outbox::observe_backlog(pool, stop));
}

async fn run(pool: Pool, mut publisher: ConfirmingPublisher, stop: CancellationToken) {
    let rounds = async {
        loop {
            if let Err(error) = publish_pending(&pool, &mut publisher).await {
                let error = format!("{error:#}");
                tracing::warn!(error, "failed to publish the pending events; trying again");
            }
            sleep(POLL_INTERVAL).await;
        }
    };
    stop.run_until_cancelled(rounds).await;
}

async fn publish_pending(pool: &Pool, publisher: &mut ConfirmingPublisher) -> anyhow::Result<()> {
    let pending = sqlx::query(
        "select seq, event_id, event_type, payload::text, headers ->> 'traceparent', lane
         from outbox where published_at is null order by seq limit 1000",
    )
    .fetch_all(pool)
    .await?;
    for row in pending {
        let seq: i64 = row.try_get(0)?;
        let message = Outgoing {
            id: row.try_get(1)?,
            event_type: row.try_get(2)?,
            body: row.try_get::<String, _>(3)?.into_bytes(),
            traceparent: row.try_get(4)?,
            lane: row.try_get(5)?,
        };
        publisher.ready().await?;
        let outcomes = publisher.publish(&[&message]).await;
        let confirmed = outcomes.first().context("the publisher returned no outcome")?;
        ensure!(*confirmed == PublishOutcome::Confirmed, "failed to publish event {seq}");
        sqlx::query("update outbox set published_at = clock_timestamp() where seq = $1")
            .bind(seq)
            .execute(pool)
            .await?;
    }
    Ok(())
}
