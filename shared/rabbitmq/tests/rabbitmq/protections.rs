//! Small settings on which promises rest: each of these tests fails without one of them.

use std::sync::Arc;

use lapin::types::FieldTable;
use messaging::{DeadLetter, DeadLetterStore, Failure, PublishOutcome, Publisher as _};
use rabbitmq::{ConnectionStatus, Consumer, DeadLetterCollector, Endpoint, topology};
use serde_json::json;
use testbed::eventually;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Mutex,
};
use uuid::Uuid;

use crate::{
    scripted_handler::{QUEUE, ScriptedHandler, consume},
    support::{DEADLINE, Running, Vhost, order_created, outgoing, ready},
};

#[tokio::test]
async fn queues_are_declared_with_what_the_promises_need() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
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
        assert_eq!(vhost.arguments(queue.name).await?, expected);
        // Without a limit of its own RabbitMQ 4 would drop a dead letter after 20 deliveries.
        let expected = json!({ "x-queue-type": "quorum", "x-delivery-limit": i32::MAX });
        assert_eq!(vhost.arguments(&topology::dead_letter_queue(queue.name)).await?, expected);
    }
    Ok(())
}

#[tokio::test]
async fn one_of_two_consumers_receives_everything_until_it_ends() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let (active, standby) = (ScriptedHandler::that_applies(), ScriptedHandler::that_applies());
    let first = consume(&vhost, &active);
    let event = order_created();
    vhost.put_event(QUEUE, &event).await?;
    active.has_applied(&[event.event_id]).await?;
    let _second = consume(&vhost, &standby);
    let events: Vec<_> = (0..50).map(|_| order_created()).collect();
    for event in &events {
        vhost.put_event(QUEUE, event).await?;
    }
    let ids: Vec<_> = events.iter().map(|event| event.event_id).collect();
    active.has_applied(&ids).await?;
    assert!(standby.applied().is_empty());
    first.stop().await?;
    let last = order_created();
    vhost.put_event(QUEUE, &last).await?;
    standby.has_applied(&[last.event_id]).await
}

/// Each dead letter may be as large as a message can be.
#[tokio::test]
async fn collector_holds_few_dead_letters_at_a_time() -> anyhow::Result<()> {
    /// Never answers.
    struct Hanging;

    impl DeadLetterStore for Hanging {
        async fn save(&self, _: &DeadLetter) -> Result<(), Failure> {
            std::future::pending().await
        }

        async fn save_behind(&self, _: &DeadLetter) -> Result<bool, Failure> {
            std::future::pending().await
        }

        async fn begin_attempt(&self, _: &str, _: Uuid) -> Result<u32, Failure> {
            panic!("a collector makes no attempts")
        }

        async fn end_attempts(&self, _: &str, _: Uuid) -> Result<(), Failure> {
            panic!("a collector makes no attempts")
        }
    }

    let vhost = Vhost::new().await?;
    let dead = topology::dead_letter_queue(QUEUE);
    for number in 0..100 {
        vhost.put(&dead, &number.to_string(), b"x").await?;
    }
    let collector = DeadLetterCollector::new(vhost.endpoint(), QUEUE, ConnectionStatus::new("test"));
    let _collector = Running::start(|stop| collector.run(Hanging, stop));
    eventually("sixteen to be delivered, and no more", DEADLINE, async || {
        let waiting = vhost.count(&dead).await?;
        anyhow::ensure!(waiting == 84, "{waiting} of 100 wait in the queue");
        Ok(Some(()))
    })
    .await
}

/// A broker routes a message to the queues that are bound and reports nothing of the one that is not.
#[tokio::test]
async fn busy_publisher_restores_a_single_lost_binding() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let mut publisher = vhost.publisher().await?;
    let (queue, key, exchange) = (QUEUE.into(), "order.created".into(), topology::EVENTS.into());
    ready(&mut publisher).await?;
    vhost.channel.queue_unbind(queue, exchange, key, FieldTable::default()).await?;
    assert_eq!(publisher.publish(&[&outgoing("OrderCreated")]).await, [PublishOutcome::Confirmed]);
    assert!(vhost.is_empty(QUEUE).await?, "the binding is still there");
    eventually("a message to reach the queue again", DEADLINE, async || {
        publisher.ready().await?;
        publisher.publish(&[&outgoing("OrderCreated")]).await;
        Ok((!vhost.is_empty(QUEUE).await?).then_some(()))
    })
    .await
}

/// With `basic.cancel`, the broker makes the next consumer the active one while this one still holds messages, and later
/// messages are applied before these.
#[tokio::test]
async fn consumer_ends_its_connection_without_cancelling_its_subscription() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let url = vhost.url();
    let (address, sent) = record_client(&url).await?;
    let target = url.rsplit('@').next().and_then(|rest| rest.split('/').next()).unwrap_or_default();
    let endpoint = Endpoint::new(&url.replace(target, &address), "test")?;
    let handler = ScriptedHandler::that_applies();
    let consumer = Consumer::new(endpoint, QUEUE, ConnectionStatus::new("test"));
    let running = Running::start(|stop| consumer.run(handler.clone(), handler.letters.clone(), stop));
    let event = order_created();
    vhost.put_event(QUEUE, &event).await?;
    handler.has_applied(&[event.event_id]).await?;
    running.stop().await?;
    let sent = async || -> Vec<_> { sent.lock().await.iter().map(|bytes| methods(bytes)).collect() };
    eventually("all connections to be closed", DEADLINE, async || {
        Ok(sent().await.iter().all(|methods| methods.contains(&CONNECTION_CLOSE)).then_some(()))
    })
    .await?;
    let sent = sent().await;
    assert!(sent.iter().any(|methods| methods.contains(&BASIC_CONSUME)), "{sent:?}");
    assert!(!sent.iter().any(|methods| methods.contains(&BASIC_CANCEL)), "{sent:?}");
    Ok(())
}

/// AMQP methods: class and method.
const CONNECTION_CLOSE: (u16, u16) = (10, 50);
const BASIC_CONSUME: (u16, u16) = (60, 20);
const BASIC_CANCEL: (u16, u16) = (60, 30);

/// What the clients have sent, one connection after the other.
type Sent = Arc<Mutex<Vec<Vec<u8>>>>;

/// Forwards connections to a broker, and records what the clients send. Returns its address.
async fn record_client(url: &str) -> anyhow::Result<(String, Sent)> {
    let target =
        url.rsplit('@').next().and_then(|rest| rest.split('/').next()).unwrap_or_default().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let sent = Sent::default();
    let record = sent.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(&target).await else { continue };
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            let record = record.clone();
            let connection = {
                let mut connections = record.lock().await;
                connections.push(vec![]);
                connections.len() - 1
            };
            tokio::spawn(async move {
                let mut buffer = vec![0; 65_536];
                while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
                    record.lock().await[connection].extend_from_slice(&buffer[..count]);
                    if to_server.write_all(&buffer[..count]).await.is_err() {
                        return;
                    }
                }
            });
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
        }
    });
    Ok((address, sent))
}

/// The methods in what a client has sent: after the protocol header, frames of a type, a channel, a size, a payload and an
/// end mark. A method's payload begins with its class and its number.
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

#[test]
fn methods_are_read_from_frames() {
    let mut sent = b"AMQP\0\0\x09\x01".to_vec();
    for (class, method) in [(10_u16, 11_u16), BASIC_CANCEL] {
        sent.extend([1, 0, 0, 0, 0, 0, 5]);
        sent.extend(class.to_be_bytes());
        sent.extend(method.to_be_bytes());
        sent.extend([7, 0xce]);
    }
    assert_eq!(methods(&sent), [(10, 11), BASIC_CANCEL]);
}
