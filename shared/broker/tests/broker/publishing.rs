use std::time::{Duration, Instant};

use broker::{Endpoint, Error, Link, Publisher, topology};
use events::transport::{Outcome, Publisher as _, Refusal};
use lapin::{
    options::{ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::FieldTable,
};
use tokio::net::TcpListener;

use crate::support::{Host, outgoing};

#[tokio::test]
async fn a_confirmed_message_is_in_every_queue_with_its_identity() -> anyhow::Result<()> {
    let host = Host::new().await?;
    let message = outgoing("OrderCreated");
    assert_eq!(host.publisher().await?.publish(std::slice::from_ref(&message)).await, [Outcome::Confirmed]);
    for queue in [topology::INVENTORY, topology::BILLING] {
        let arrived = host.take(queue).await?;
        assert_eq!(arrived.data, message.body);
        assert_eq!(arrived.routing_key.as_str(), "order.created");
        let properties = &arrived.properties;
        assert_eq!(properties.message_id().as_ref().unwrap().as_str(), message.id.to_string());
        assert_eq!(properties.kind().as_ref().unwrap().as_str(), "OrderCreated");
        assert_eq!(*properties.delivery_mode(), Some(2), "it has to survive a restart of the broker");
        let headers = properties.headers().as_ref().unwrap().inner();
        let traceparent = headers["traceparent"].as_long_string().unwrap().to_string();
        assert_eq!(Some(traceparent), message.traceparent);
    }
    Ok(())
}

#[tokio::test]
async fn what_comes_back_unroutable_is_never_taken_for_published() -> anyhow::Result<()> {
    // Every fifth message is one that no queue is bound for. Returns carry no delivery tag, and the client hands them
    // to whichever confirm completes next: whoever trusts the confirm alone marks some of them as published.
    let host = Host::new().await?;
    let mut publisher = host.publisher().await?;
    for _ in 0..5 {
        let batch: Vec<_> = (0..1000)
            .map(|number| outgoing(if number % 5 == 0 { "NobodyWantsThis" } else { "OrderCreated" }))
            .collect();
        publisher.ready().await?;
        let outcomes = publisher.publish(&batch).await;
        assert_eq!(outcomes.len(), batch.len());
        for (message, outcome) in batch.iter().zip(outcomes) {
            let expected = match message.event_type.as_str() {
                "OrderCreated" => Outcome::Confirmed,
                _ => Outcome::Refused(Refusal::Unroutable),
            };
            assert_eq!(outcome, expected, "{}", message.event_type);
        }
    }
    Ok(())
}

#[tokio::test]
async fn queues_that_were_deleted_are_there_again_for_the_next_attempt() -> anyhow::Result<()> {
    let host = Host::new().await?;
    let mut publisher = host.publisher().await?;
    for queue in [topology::INVENTORY, topology::BILLING] {
        host.channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
    }
    let message = outgoing("OrderCreated");
    let batch = std::slice::from_ref(&message);
    assert_eq!(publisher.publish(batch).await, [Outcome::Refused(Refusal::Unroutable)]);
    publisher.ready().await?;
    assert_eq!(publisher.publish(batch).await, [Outcome::Confirmed]);
    Ok(())
}

#[tokio::test]
async fn an_exchange_that_was_deleted_is_unknown_at_first_and_then_there_again() -> anyhow::Result<()> {
    let host = Host::new().await?;
    let mut publisher = host.publisher().await?;
    host.channel.exchange_delete(topology::EVENTS.into(), ExchangeDeleteOptions::default()).await?;
    let message = outgoing("OrderCreated");
    let batch = std::slice::from_ref(&message);
    assert_eq!(publisher.publish(batch).await, [Outcome::Unknown], "the event has to stay in the outbox");
    publisher.ready().await?;
    assert_eq!(publisher.publish(batch).await, [Outcome::Confirmed]);
    Ok(())
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_alone() -> anyhow::Result<()> {
    let host = Host::new().await?;
    let mut large = outgoing("OrderCreated");
    large.body = vec![b' '; 2 * 1024 * 1024];
    let batch = [outgoing("OrderCreated"), large, outgoing("OrderCreated")];
    let outcomes = host.publisher().await?.publish(&batch).await;
    assert_eq!(outcomes, [Outcome::Confirmed, Outcome::Refused(Refusal::TooLarge), Outcome::Confirmed]);
    Ok(())
}

#[tokio::test]
async fn a_broker_that_accepts_and_stays_silent_is_away_within_seconds() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = Endpoint::new(&format!("amqp://shop:shop@{}/shop", listener.local_addr()?), "test")?;
    let mut publisher = Publisher::new(endpoint, Link::new("test"), Duration::from_secs(10));
    let began = Instant::now();
    assert!(publisher.ready().await.is_err());
    // Not a matter of speed: without a deadline of ours this line would never be reached.
    assert!(began.elapsed() < Duration::from_secs(30));
    Ok(())
}

#[tokio::test]
async fn settings_that_no_waiting_will_mend_are_told_apart_from_a_broker_that_is_away() -> anyhow::Result<()>
{
    let host = Host::new().await?;
    let refused = async |url: &str| Endpoint::new(url, "test").unwrap().check().await;
    let (address, _) =
        host.url().rsplit_once('/').map(|(address, vhost)| (address.to_owned(), vhost.to_owned())).unwrap();
    let no_vhost = format!("{address}/there-is-none");
    assert!(matches!(refused(&no_vhost).await, Err(Error::Refused(_))), "an unknown virtual host");
    let wrong_user = host.url().replacen("amqp://", "amqp://intruder-", 1);
    assert!(matches!(refused(&wrong_user).await, Err(Error::Refused(_))), "an unknown user");

    host.channel.queue_delete(topology::BILLING.into(), QueueDeleteOptions::default()).await?;
    let classic = QueueDeclareOptions { durable: true, ..Default::default() };
    host.channel.queue_declare(topology::BILLING.into(), classic, FieldTable::default()).await?;
    assert!(matches!(refused(&host.url()).await, Err(Error::Refused(_))), "a queue with other arguments");

    let nobody = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    refused(&format!("amqp://shop:shop@{nobody}/shop")).await?;
    Ok(())
}
