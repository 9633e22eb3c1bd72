//! A cluster of three nodes.

use messaging::PublishOutcome;
use rabbitmq::Endpoint;
use testbed::{Home, RabbitmqCluster, eventually};

use crate::{
    scripted::{ScriptedHandler, consume_with},
    support::{DEADLINE, QUEUE, TestPublisher, outgoing},
};

/// The queue has three members although no client asks for them: that is RabbitMQ's default, and a client that asks for them is
/// refused by a queue that exists without.
#[tokio::test]
async fn confirmed_messages_survive_the_leader_of_their_queue() -> anyhow::Result<()> {
    // Where the servers are containers, there may be none; nodes in containers would need a network.
    if testbed::find_rabbitmq().is_err() {
        return Ok(());
    }
    let cluster = RabbitmqCluster::start(Home::Local, 3).await?;
    let endpoint = Endpoint::new(&cluster.url(), "test")?;
    let mut publisher = TestPublisher::new(endpoint.clone(), DEADLINE);
    publisher.until_ready().await?;
    cluster.wait_complete(&[QUEUE]).await?;

    let batch: Vec<_> = (0..200).map(|_| outgoing("OrderCreated")).collect();
    let outcomes = publisher.publish(&batch).await;
    assert!(outcomes.iter().all(|outcome| *outcome == PublishOutcome::Confirmed), "{outcomes:?}");
    let before = cluster.members(QUEUE).await?;
    cluster.node(before.leader)?.kill().await?;
    publisher.until_confirmed().await?;
    let after = eventually("another leader", DEADLINE, async || {
        let after = cluster.members(QUEUE).await?;
        Ok((after.leader != before.leader && after.online == 2).then_some(after))
    });
    assert_eq!(after.await?.members, 3);

    let handler = ScriptedHandler::that_applies();
    let _consumer = consume_with(endpoint, &handler, |consumer| consumer);
    let ids: Vec<_> = batch.iter().map(|message| message.id).collect();
    handler.has_applied(&ids).await
}
