//! Small settings on which promises rest: each of these tests fails without one of them.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use lapin::{options::QueueDeclareOptions, types::FieldTable};
use messaging::{PublishOutcome, Publisher as _};
use rabbitmq::{Consumer, topology};
use serde_json::{Value, json};
use testbed::eventually;

use crate::{
    proxy::proxy,
    scripted::{ScriptedHandler, ScriptedStore, consume, consume_with},
    support::{DEADLINE, QUEUE, Running, Vhost, outgoing, until},
};

#[tokio::test]
async fn queues_are_declared_with_what_the_promises_need() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let arguments = async |queue: &str| -> anyhow::Result<Value> {
        let described: Value = serde_json::from_str(&vhost.operator().describe_queue(queue).await?)?;
        Ok(described["arguments"].clone())
    };
    for queue in topology::SHOP_QUEUES {
        let expected = json!({
            "x-queue-type": "quorum",
            "x-single-active-consumer": true,
            "x-overflow": "reject-publish",
            "x-dead-letter-strategy": "at-least-once",
            "x-dead-letter-exchange": topology::DEAD,
            "x-dead-letter-routing-key": queue.name,
            "x-delivery-limit": 500,
        });
        assert_eq!(arguments(queue.name).await?, expected);
        // Without its own limit RabbitMQ 4 would drop a dead letter after 20 deliveries.
        let expected = json!({ "x-queue-type": "quorum", "x-delivery-limit": i32::MAX });
        assert_eq!(arguments(&topology::dead_letter_queue(queue.name)).await?, expected);
    }
    Ok(())
}

#[tokio::test]
async fn one_of_two_consumers_receives_everything_until_it_ends() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let (active, standby) = (ScriptedHandler::that_applies(), ScriptedHandler::that_applies());
    let first = consume(&vhost, &active);
    active.has_applied(&[vhost.put_event().await?]).await?;
    let _second = consume(&vhost, &standby);
    active.has_applied(&vhost.put_events(50).await?).await?;
    assert!(standby.applied().is_empty());
    first.stop().await?;
    standby.has_applied(&[vhost.put_event().await?]).await
}

/// A broker routes a message to the queues that are bound and reports nothing of the one that is not.
#[tokio::test]
async fn busy_publisher_restores_a_single_lost_binding() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let mut publisher = vhost.publisher().await?;
    // Every five seconds the publisher restores it, perhaps at this moment.
    eventually("a message to miss the queue", DEADLINE, async || {
        let (queue, key, exchange) = (QUEUE.into(), "order.created".into(), topology::EVENTS.into());
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
    const CONNECTION_CLOSE: (u16, u16) = (10, 50);
    const BASIC_CONSUME: (u16, u16) = (60, 20);
    const BASIC_CANCEL: (u16, u16) = (60, 30);
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
    let has_sent = |method| methods(&sent.lock().unwrap()).contains(&method);
    until("the connection to be closed", || has_sent(CONNECTION_CLOSE)).await?;
    assert!(has_sent(BASIC_CONSUME) && !has_sent(BASIC_CANCEL), "{:?}", methods(&sent.lock().unwrap()));
    Ok(())
}

/// The AMQP methods, class and number, in what a client has sent: after the protocol header, frames of a type, a
/// channel, a size, a payload and an end mark. A method's payload begins with its class and its number.
fn methods(sent: &[u8]) -> Vec<(u16, u16)> {
    let (mut methods, mut rest) = (vec![], sent);
    loop {
        rest = rest.strip_prefix(b"AMQP\0\0\x09\x01").unwrap_or(rest);
        let [kind, _, _, a, b, c, d, payload @ ..] = rest else { return methods };
        let size = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        if let (1, [a, b, c, d, ..]) = (kind, payload) {
            methods.push((u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d])));
        }
        rest = payload.get(size + 1..).unwrap_or_default();
    }
}

/// The queue of an external consumer, which no other client declares.
const EXTERNAL: topology::Queue =
    topology::Queue { name: "external.events", keys: &["order.created", "order.cancelled"] };

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
    let (key, exchange) = (EXTERNAL.keys[0].into(), topology::EVENTS.into());
    vhost.channel.queue_unbind(EXTERNAL.name.into(), exchange, key, FieldTable::default()).await?;
    receives("events after the binding was lost").await
}
