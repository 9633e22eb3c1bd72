//! What only the primary has is not published: a fail-over would leave an event without its order.

use outbox::Step;
use testbed::{commit_waits, release_commits, write_without_standby};
use uuid::Uuid;

use crate::support::{Outbox, ScriptedBroker};

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
        tokio::select! {
            step = &mut step => anyhow::bail!("the relay did not wait for the standby: {step:?}"),
            waits = commit_waits(&admin) => waits?,
        }
        assert!(broker.seen().is_empty(), "published before the standby had it");
        release_commits(&admin).await?;
        assert_eq!(step.await?, Step::PublishedAll(1));
    }
    assert_eq!(relay.step().await?, Step::Idle);
    Ok(())
}
