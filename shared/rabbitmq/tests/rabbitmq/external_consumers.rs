//! An external consumer: one that brings a queue of its own, which no other client declares.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use events::Event;
use lapin::{options::QueueDeclareOptions, types::FieldTable};
use messaging::{Applied, Failure, Handler, PublishOutcome, Publisher as _};
use rabbitmq::{ConnectionStatus, Consumer, Endpoint, topology};
use testbed::eventually;
use uuid::Uuid;

use crate::{
    scripted_store::ScriptedStore,
    support::{DEADLINE, Running, Vhost, outgoing, ready},
};

const QUEUE: topology::Queue =
    topology::Queue { name: "external.events", keys: &["order.created", "order.cancelled"] };

fn endpoint(vhost: &Vhost) -> Endpoint {
    vhost.endpoint().with_queue(QUEUE)
}

#[tokio::test]
async fn external_queue_exists_from_its_consumers_first_connection_on() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let mut publisher = vhost.publisher().await?;
    let (before, after) = (outgoing("OrderCreated"), outgoing("OrderCreated"));
    let outcomes = publisher.publish(&[&before]).await;
    assert_eq!(outcomes, [PublishOutcome::Confirmed], "the services' queues receive it");
    let passive = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
    let channel = vhost.open_channel().await?;
    let declared = channel.queue_declare(QUEUE.name.into(), passive, FieldTable::default()).await;
    assert!(declared.is_err(), "without a consumer the queue would grow for ever");

    endpoint(&vhost).check().await?;
    ready(&mut publisher).await?;
    assert_eq!(publisher.publish(&[&after]).await, [PublishOutcome::Confirmed]);
    let received = vhost.take(QUEUE.name).await?;
    assert_eq!(received.properties.message_id().as_ref().unwrap().as_str(), after.id.to_string());
    Ok(())
}

/// Records the ids of the events it receives.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<HashSet<Uuid>>>);

impl Handler for Recorder {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        self.0.lock().unwrap().extend(group.iter().map(|event| event.id));
        Ok(Applied { first: group.len(), duplicates: 0 })
    }
}

#[tokio::test]
async fn external_consumer_restores_its_lost_binding() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let recorder = Recorder::default();
    let consumer = Consumer::new(endpoint(&vhost), QUEUE.name, ConnectionStatus::new("test"));
    let _consumer = Running::start(|stop| consumer.run(recorder.clone(), ScriptedStore::that_saves(), stop));
    let mut publisher = vhost.publisher().await?;
    // Publishes until the consumer has received one of the events. Those that are published while the queue does not
    // exist or is not bound never arrive.
    let mut receives = async |what: &str| {
        let mut published = HashSet::new();
        eventually(what, DEADLINE, async || {
            let message = outgoing("OrderCreated");
            published.insert(message.id);
            publisher.ready().await?;
            // The other event keeps its binding, so that the consumer restores the lost one under load, too.
            publisher.publish(&[&message, &outgoing("OrderCancelled")]).await;
            Ok((!published.is_disjoint(&recorder.0.lock().unwrap())).then_some(()))
        })
        .await
    };
    receives("the first event").await?;
    let (key, exchange) = (QUEUE.keys[0].into(), topology::EVENTS.into());
    vhost.channel.queue_unbind(QUEUE.name.into(), exchange, key, FieldTable::default()).await?;
    receives("events after the binding was lost").await
}
