//! Small settings on which promises rest: each of these tests fails without one of them.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use lapin::{options::QueueDeclareOptions, types::FieldTable};
use messaging::{PublishOutcome, Publisher as _};
use rabbitmq::{Consumer, queues};
use serde_json::{Value, json};
use testbed::eventually;

use crate::{
    proxy::{BASIC_CANCEL, BASIC_CONSUME, proxy},
    scripted::{ScriptedHandler, ScriptedStore, consume_with},
    support::{DEADLINE, QUEUE, Running, Vhost, outgoing, until},
};

#[tokio::test]
async fn queues_are_declared_with_what_the_promises_need() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let arguments = async |queue: &str| -> anyhow::Result<Value> {
        let described: Value = serde_json::from_str(&vhost.operator().describe_queue(queue).await?)?;
        Ok(described["arguments"].clone())
    };
    for queue in queues::SHOP_QUEUES {
        let expected = json!({
            "x-queue-type": "quorum",
            "x-single-active-consumer": true,
            "x-overflow": "reject-publish",
            "x-dead-letter-strategy": "at-least-once",
            "x-dead-letter-exchange": queues::DEAD,
            "x-dead-letter-routing-key": queue.name,
            "x-delivery-limit": 500,
        });
        assert_eq!(arguments(queue.name).await?, expected);
        // Without its own limit RabbitMQ 4 would drop a dead letter after 20 deliveries.
        let expected = json!({ "x-queue-type": "quorum", "x-delivery-limit": i32::MAX });
        assert_eq!(arguments(&queues::dead_letter_queue(queue.name)).await?, expected);
    }
    Ok(())
}

/// A broker routes a message to the queues that are bound and reports nothing of the one that is not.
#[tokio::test]
async fn busy_publisher_restores_a_single_lost_binding() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let mut publisher = vhost.publisher().await?;
    // Every five seconds the publisher restores it, perhaps at this moment.
    eventually("a message to miss the queue", DEADLINE, async || {
        let (queue, key, exchange) = (QUEUE.into(), "order.created".into(), queues::EVENTS.into());
        vhost.channel.queue_unbind(queue, exchange, key, FieldTable::default()).await?;
        assert_eq!(publisher.publish(&[outgoing("OrderCreated")]).await, [PublishOutcome::Confirmed]);
        if vhost.is_empty(QUEUE).await? {
            return Ok(Some(()));
        }
        vhost.take(QUEUE).await.map(|_| None)
    })
    .await?;
    eventually("a message to reach the queue again", DEADLINE, async || {
        publisher.until_confirmed().await?;
        Ok((!vhost.is_empty(QUEUE).await?).then_some(()))
    })
    .await
}

/// With `basic.cancel`, the broker makes the next consumer the active one while this one still holds messages, and later
/// messages are applied before these.
#[tokio::test]
async fn consumer_ends_its_connection_without_cancelling_its_subscription() -> anyhow::Result<()> {
    const CONNECTION_CLOSE: [u8; 4] = [0, 10, 0, 50];
    let vhost = Vhost::new().await?;
    let sent = Arc::new(Mutex::new(vec![]));
    let record = sent.clone();
    let endpoint = proxy(&vhost, move |(_, _, sent)| {
        record.lock().unwrap().extend_from_slice(sent);
        sent.len()
    });
    let handler = ScriptedHandler::that_applies();
    let running = consume_with(endpoint.await?, &handler, |consumer| consumer);
    handler.has_applied(&[vhost.put_event().await?]).await?;
    running.stop().await?;
    let has_sent = |method: [u8; 4]| sent.lock().unwrap().windows(4).any(|bytes| bytes == method);
    until("the connection to be closed", || has_sent(CONNECTION_CLOSE)).await?;
    assert!(has_sent(BASIC_CONSUME), "the proxy has seen no subscription");
    assert!(!has_sent(BASIC_CANCEL), "the subscription was cancelled");
    let has_priority = sent.lock().unwrap().windows(10).any(|bytes| bytes == b"x-priority");
    assert!(
        !has_priority,
        "the subscription has a priority: with one, a new instance would become the active consumer"
    );
    Ok(())
}

/// The queue of an external consumer, which no other client declares.
const EXTERNAL: queues::Queue =
    queues::Queue { name: "external.events", keys: &["order.created", "order.cancelled"] };

#[tokio::test]
async fn external_queue_exists_from_its_consumers_first_connection_on() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let mut publisher = vhost.publisher().await?;
    let (before, after) = (outgoing("OrderCreated"), outgoing("OrderCreated"));
    let outcomes = publisher.publish(&[before]).await;
    assert_eq!(outcomes, [PublishOutcome::Confirmed], "the services' queues receive it");
    let passive = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
    let channel = vhost.open_channel().await?;
    let declared = channel.queue_declare(EXTERNAL.name.into(), passive, FieldTable::default()).await;
    assert!(declared.is_err(), "without a consumer the queue would grow forever");

    vhost.endpoint().with_queue(EXTERNAL).check().await?;
    let id = after.id.to_string();
    publisher.until_ready().await?;
    assert_eq!(publisher.publish(&[after]).await, [PublishOutcome::Confirmed]);
    let received = vhost.take(EXTERNAL.name).await?;
    assert_eq!(received.properties.message_id().as_ref().unwrap().as_str(), id);
    Ok(())
}

#[tokio::test]
async fn external_consumer_restores_its_lost_binding() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let (handler, letters) = (ScriptedHandler::that_applies(), ScriptedStore::that_saves());
    let (running, endpoint) = (handler.clone(), vhost.endpoint().with_queue(EXTERNAL));
    let _consumer = Running::start(|status, stop| {
        Consumer::new(endpoint, EXTERNAL.name, status).run(running, letters, stop)
    });
    let mut publisher = vhost.publisher().await?;
    // Publishes until the consumer has received one of the events. Those that are published while the queue does not
    // exist or is not bound never arrive.
    let mut receives = async |what: &str| {
        let mut published = HashSet::new();
        eventually(what, DEADLINE, async || {
            let message = outgoing("OrderCreated");
            published.insert(message.id);
            publisher.publisher.ready().await?;
            // The other event keeps its binding, so that the consumer restores the lost one under load, too.
            publisher.publish(&[message, outgoing("OrderCancelled")]).await;
            Ok(handler.applied().iter().any(|event| published.contains(event)).then_some(()))
        })
        .await
    };
    receives("the first event").await?;
    let (key, exchange) = (EXTERNAL.keys[0].into(), queues::EVENTS.into());
    vhost.channel.queue_unbind(EXTERNAL.name.into(), exchange, key, FieldTable::default()).await?;
    receives("events after the binding was lost").await
}
