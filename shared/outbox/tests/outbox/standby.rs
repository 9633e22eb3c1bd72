//! What only the primary has is not published: a fail-over would leave an event without its order.

use database::DatabaseHealth;
use messaging::{Step, replay::Selection};
use outbox::parked_events::{Replayed, discard, replay};
use testbed::{eventually, hang_commits, release_commits, waits_for_standby, write_without_standby};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{DEADLINE, NEVER, Outbox, ScriptedBroker, TWO_WEEKS, relay_over};

#[tokio::test]
async fn event_is_published_only_when_the_synchronous_standby_has_it() -> anyhow::Result<()> {
    let server = testbed::Postgres::private().await?;
    let admin = server.admin_url("postgres");
    let outbox = Outbox::on(testbed::database_on(&admin).await?).await?;
    write_without_standby(&admin, outbox.append(Uuid::now_v7(), 1)).await?;
    assert_eq!(outbox.count().await?, 1, "the event must be visible");

    let broker = ScriptedBroker::that_confirms();
    let mut relay = outbox.relay(&broker);
    {
        let mut step = std::pin::pin!(relay.step());
        waits_for_standby(&admin, step.as_mut()).await?;
        assert!(broker.seen().is_empty(), "published before the standby had it");
        release_commits(&admin).await?;
        assert_eq!(step.await?, Step::PublishedAll(1));
    }
    assert_eq!(relay.step().await?, Step::Idle);
    Ok(())
}

/// Each write would leave one more session at the server that waits for the standby.
#[tokio::test]
async fn relay_and_operator_write_nothing_while_health_says_that_commits_hang() -> anyhow::Result<()> {
    let server = testbed::Postgres::private().await?;
    let admin = server.admin_url("postgres");
    let outbox = Outbox::on(testbed::database_on(&admin).await?).await?;
    outbox.append(Uuid::now_v7(), 1).await?;
    let (health, stop) = (DatabaseHealth::default(), CancellationToken::new());
    health.set_prepared();
    let _stop = stop.clone().drop_guard();
    tokio::spawn(health.clone().watch(outbox.url().parse().map_err(anyhow::Error::msg)?, stop));
    let broker = ScriptedBroker::that_confirms();
    let pool = outbox.pool.clone().with_health(health.clone());
    let mut relay = relay_over(&pool, &broker, NEVER);
    let probe = health.probe();

    hang_commits(&admin).await?;
    let mut writing = std::pin::pin!(outbox.append(Uuid::now_v7(), 1));
    tokio::select! {
        written = &mut writing => anyhow::bail!("the commit did not wait for the standby: {written:?}"),
        hang = eventually("health to name the standby", DEADLINE, async || {
            Ok(probe().is_err_and(|reason| reason.contains("standby")).then_some(()))
        }) => hang?,
    }
    let failed = relay.step().await;
    assert!(failed.is_err(), "{failed:?}");
    assert!(broker.seen().is_empty(), "an event was claimed");
    let all = Selection { all: true, ..Selection::default() };
    let replayed = replay(&pool, Replayed::Parked, &all, TWO_WEEKS).await;
    assert!(replayed.is_err(), "{replayed:?}");
    let discarded = discard(&pool, Uuid::nil(), "a note").await;
    assert!(discarded.is_err(), "{discarded:?}");

    release_commits(&admin).await?;
    writing.await?;
    eventually("health to be well again", DEADLINE, async || Ok(probe().is_ok().then_some(()))).await?;
    assert_eq!(relay.step().await?, Step::PublishedAll(2));
    Ok(())
}
