//! Each wake-up does its work, and without any of them the poll does.

use std::time::Duration;

use crate::support::{Outbox, ScriptedBroker};
use outbox::{Relay, RelayOptions, Wake};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const NEVER: Duration = Duration::from_secs(3600);

async fn is_published(outbox: &Outbox, event_id: Uuid) -> anyhow::Result<()> {
    testbed::eventually("the event to be published", Duration::from_secs(10), async || {
        Ok(outbox.state(event_id).await?.0.then_some(()))
    })
    .await
}

/// A relay in a task of its own; ends with the returned guard.
async fn start(outbox: &Outbox, poll: Duration, wake: &Wake) -> anyhow::Result<tokio_util::sync::DropGuard> {
    let stop = CancellationToken::new();
    // An idle relay sleeps no longer than until its next full look.
    let options = RelayOptions { poll, full_look: poll, ..RelayOptions::default() };
    let broker = ScriptedBroker::that_confirms();
    let relay = Relay::new(outbox.pool.clone(), broker.clone(), options);
    tokio::spawn(relay.run(wake.clone(), stop.clone()));
    // The first look is part of the start. What comes afterwards is seen because of a wake-up, or of a poll.
    let first = outbox.append(Uuid::now_v7(), 1).await?;
    wake.after_commit();
    is_published(outbox, first).await?;
    Ok(stop.drop_guard())
}

#[tokio::test]
async fn a_commit_in_this_process_wakes_the_relay() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let wake = Wake::new();
    let _relay = start(&outbox, NEVER, &wake).await?;
    for _ in 0..20 {
        let id = outbox.append(Uuid::now_v7(), 1).await?;
        wake.after_commit();
        is_published(&outbox, id).await?;
    }
    Ok(())
}

#[tokio::test]
async fn with_every_wake_up_lost_the_poll_finds_it() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let _relay = start(&outbox, Duration::from_millis(200), &Wake::new()).await?;
    let id = outbox.append(Uuid::now_v7(), 1).await?;
    is_published(&outbox, id).await
}

#[tokio::test]
async fn a_commit_in_another_instance_wakes_the_relay() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let (here, there) = (Wake::new(), Wake::new());
    let _relay = start(&outbox, NEVER, &here).await?;
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    tokio::spawn(outbox::listen(outbox.pool.clone(), here, Uuid::now_v7(), stop.clone()));
    tokio::spawn(outbox::notify_others(outbox.pool.clone(), there.clone(), Uuid::now_v7(), stop));
    let id = outbox.append(Uuid::now_v7(), 1).await?;
    // Rung again and again: the subscription may not stand yet, and a notification before it is gone.
    testbed::eventually("the event to be published", Duration::from_secs(10), async || {
        there.after_commit();
        Ok(outbox.state(id).await?.0.then_some(()))
    })
    .await
}

#[tokio::test]
async fn any_writer_can_wake_the_relay_from_sql() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let wake = Wake::new();
    let _relay = start(&outbox, NEVER, &wake).await?;
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    tokio::spawn(outbox::listen(outbox.pool.clone(), wake, Uuid::now_v7(), stop));
    let id = outbox.append(Uuid::now_v7(), 1).await?;
    testbed::eventually("the event to be published", Duration::from_secs(10), async || {
        sqlx::query("select outbox_wake()").execute(&outbox.pool).await?;
        Ok(outbox.state(id).await?.0.then_some(()))
    })
    .await
}

#[tokio::test]
async fn the_listener_survives_the_loss_of_its_connection() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let wake = Wake::new();
    let _relay = start(&outbox, NEVER, &wake).await?;
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    tokio::spawn(outbox::listen(outbox.pool.clone(), wake, Uuid::now_v7(), stop));
    let listeners = "select count(pg_terminate_backend(pid)) from pg_stat_activity
                     where query ilike 'listen%' and datname = current_database()";
    testbed::eventually("the subscription", Duration::from_secs(10), async || {
        let killed: i64 = sqlx::query_scalar(listeners).fetch_one(&outbox.pool).await?;
        Ok((killed > 0).then_some(()))
    })
    .await?;
    // Committed while nobody listens, and announced to nobody: coming back means looking.
    let id = outbox.append(Uuid::now_v7(), 1).await?;
    is_published(&outbox, id).await
}
