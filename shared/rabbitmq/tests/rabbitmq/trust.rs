//! Which messages a consumer believes to be events of the service that they name.

use lapin::{BasicProperties, options::BasicPublishOptions};
use rabbitmq::queues;

use crate::{
    scripted::{ScriptedHandler, consume},
    support::{QUEUE, TestPublisher, Vhost, order_created, outgoing},
};

/// The broker checks `user_id`, and a login's right to a routing key of the exchange of events, and nothing else.
#[tokio::test]
async fn event_is_a_dead_letter_unless_the_broker_has_checked_its_sender() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let handler = ScriptedHandler::that_applies();
    let _consumer = consume(&vhost, &handler);
    let mut trusted = vec![vhost.put_event().await?];
    let mut publisher: TestPublisher = vhost.publisher().await?;
    let event = outgoing("OrderCreated");
    trusted.push(event.id);
    publisher.publish(&[event]).await;
    let mut forged = vec![];
    for (exchange, key, is_trusted) in [
        // From a release that sets no `user_id`.
        (queues::EVENTS, "order.created", true),
        // The body is of another type.
        (queues::EVENTS, "order.cancelled", false),
        // Everyone who may write to the queue.
        ("", QUEUE, false),
    ] {
        let event = order_created();
        let id = event.event_id.to_string();
        let properties = BasicProperties::default().with_message_id(id.as_str().into());
        let (options, body) = (BasicPublishOptions::default(), event.payload.as_bytes());
        vhost.channel.basic_publish(exchange.into(), key.into(), options, body, properties).await?.await?;
        if is_trusted { trusted.push(event.event_id) } else { forged.push(id) }
    }
    handler.has_applied(&trusted).await?;
    let letters = handler.letters.saved(forged.len()).await?;
    let found: Vec<_> = letters.iter().map(|letter| letter.message_id.clone().unwrap_or_default()).collect();
    assert_eq!(found, forged);
    assert!(letters.iter().all(|letter| letter.reason == events::FORGED), "{letters:?}");
    Ok(())
}

/// An event that was published with the login of the services has it in `user_id`.
#[tokio::test]
async fn published_event_names_the_login_that_published_it() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    vhost.publisher().await?.publish(&[outgoing("OrderCreated")]).await;
    let received = vhost.take(QUEUE).await?;
    assert_eq!(received.properties.user_id().as_ref().map(|user| user.as_str()), Some("shop"));
    Ok(())
}
