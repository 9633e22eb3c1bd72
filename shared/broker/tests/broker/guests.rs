//! A consumer that is not one of the house's, with a queue of its own.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use broker::{Consumer, ConsumerOptions, Endpoint, Link, topology};
use events::{
    Event,
    transport::{Applied, Failure, Handler, Outcome, Publisher as _},
};
use lapin::{options::QueueDeclareOptions, types::FieldTable};
use testbed::eventually;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{Host, outgoing};

const QUEUE: topology::Queue =
    topology::Queue { name: "guest.events", keys: &["order.created", "order.cancelled"] };

fn guest(host: &Host) -> Endpoint {
    host.endpoint().with_queue(QUEUE)
}

#[tokio::test]
async fn a_guest_s_queue_is_made_by_the_guest_and_holds_what_is_published_from_then_on() -> anyhow::Result<()>
{
    let host = Host::new().await?;
    let mut publisher = host.publisher().await?;
    let (before, after) = (outgoing("OrderCreated"), outgoing("OrderCreated"));
    assert_eq!(publisher.publish(&[before]).await, [Outcome::Confirmed], "the house has queues enough");
    let passive = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
    let elsewhere = host.another_channel().await?;
    let asked = elsewhere.queue_declare(QUEUE.name.into(), passive, FieldTable::default()).await;
    assert!(asked.is_err(), "nobody reads it, and it would grow for ever");

    guest(&host).check().await?;
    publisher.ready().await?;
    assert_eq!(publisher.publish(std::slice::from_ref(&after)).await, [Outcome::Confirmed]);
    let arrived = host.take(QUEUE.name).await?;
    assert_eq!(arrived.properties.message_id().as_ref().unwrap().as_str(), after.id.to_string());
    Ok(())
}

/// Remembers the ids of what it was given.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<Uuid>>>);

impl Handler for Notes {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        self.0.lock().unwrap().extend(group.iter().map(|event| event.id));
        Ok(Applied { first: group.len(), duplicates: 0 })
    }
}

#[tokio::test]
async fn a_guest_whose_binding_is_lost_hears_nothing_and_makes_it_again() -> anyhow::Result<()> {
    let host = Host::new().await?;
    let (notes, stop) = (Notes::default(), CancellationToken::new());
    let consumer = Consumer::new(guest(&host), QUEUE.name, ConsumerOptions::default(), Link::new("test"));
    tokio::spawn(consumer.run(notes.clone(), stop.clone()));
    let _consumer = stop.drop_guard();
    let mut publisher = host.publisher().await?;
    let mut heard = async |what: &str| {
        eventually(what, Duration::from_secs(20), async || {
            let message = outgoing("OrderCreated");
            publisher.ready().await?;
            // With something else in between, so that the queue is never silent.
            publisher.publish(&[message.clone(), outgoing("OrderCancelled")]).await;
            // What is published before the queue is there, or while it is not bound, goes past it.
            let patience = Duration::from_millis(500);
            let arrived = eventually("the event", patience, async || {
                Ok(notes.0.lock().unwrap().contains(&message.id).then_some(()))
            });
            Ok(arrived.await.ok())
        })
        .await
    };
    heard("the first event").await?;
    let (key, exchange) = (QUEUE.keys[0].into(), topology::EVENTS.into());
    host.channel.queue_unbind(QUEUE.name.into(), exchange, key, FieldTable::default()).await?;
    heard("events again").await
}
