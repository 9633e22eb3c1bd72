use std::time::Duration;

use lapin::{
    options::{ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::FieldTable,
};
use messaging::{PublishOutcome, Publisher as _, Refusal};
use metrics_exporter_prometheus::PrometheusBuilder;
use rabbitmq::{ConfirmingPublisher, ConnectionStatus, Endpoint, Error, Fault, topology};
use testbed::{Rabbitmq, eventually};
use tokio::{
    net::{TcpListener, TcpSocket},
    time::{sleep, timeout},
};

use crate::support::{DEADLINE, Vhost, outgoing, ready, refs};

#[tokio::test]
async fn confirmed_message_is_in_every_bound_queue_with_its_properties() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let message = outgoing("OrderCreated");
    let outcomes = vhost.publisher().await?.publish(&[&message]).await;
    assert_eq!(outcomes, [PublishOutcome::Confirmed]);
    for queue in [topology::INVENTORY, topology::BILLING] {
        let received = vhost.take(queue).await?;
        assert_eq!(received.data, message.body);
        assert_eq!(received.routing_key.as_str(), "order.created");
        let properties = &received.properties;
        assert_eq!(properties.message_id().as_ref().unwrap().as_str(), message.id.to_string());
        assert_eq!(properties.kind().as_ref().unwrap().as_str(), "OrderCreated");
        assert_eq!(*properties.delivery_mode(), Some(2), "it must survive a restart of the broker");
        let headers = properties.headers().as_ref().unwrap().inner();
        let traceparent = headers["traceparent"].as_long_string().unwrap().to_string();
        assert_eq!(Some(traceparent), message.traceparent);
    }
    Ok(())
}

#[tokio::test]
async fn unroutable_messages_are_never_reported_as_confirmed() -> anyhow::Result<()> {
    // No queue is bound for every fifth message. A return carries no delivery tag, and lapin hands it to the confirm
    // that completes next: a publisher that trusts each confirm alone reports some of these messages as confirmed.
    let vhost = Vhost::new().await?;
    let mut publisher = vhost.publisher().await?;
    for _ in 0..5 {
        let batch: Vec<_> = (0..1000)
            .map(|number| outgoing(if number % 5 == 0 { "UnboundEvent" } else { "OrderCreated" }))
            .collect();
        ready(&mut publisher).await?;
        let outcomes = publisher.publish(&refs(&batch)).await;
        assert_eq!(outcomes.len(), batch.len());
        for (message, outcome) in batch.iter().zip(outcomes) {
            let expected = match message.event_type.as_str() {
                "OrderCreated" => PublishOutcome::Confirmed,
                _ => PublishOutcome::Refused(Refusal::Unroutable),
            };
            assert_eq!(outcome, expected, "{}", message.event_type);
        }
    }
    Ok(())
}

#[tokio::test]
async fn deleted_queues_are_declared_again() -> anyhow::Result<()> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let vhost = Vhost::new().await?;
    let mut publisher = vhost.publisher().await?;
    assert!(
        !recorder.handle().render().contains("broker_queues_recreated_total"),
        "a new broker has no queues"
    );
    for queue in [topology::INVENTORY, topology::BILLING] {
        vhost.channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
    }
    let message = outgoing("OrderCreated");
    let batch = &[&message];
    assert_eq!(publisher.publish(batch).await, [PublishOutcome::Refused(Refusal::Unroutable)]);
    eventually("the message to be confirmed", DEADLINE, async || {
        ready(&mut publisher).await?;
        Ok((publisher.publish(batch).await == [PublishOutcome::Confirmed]).then_some(()))
    })
    .await?;
    let metrics = recorder.handle().render();
    assert!(metrics.contains("broker_queues_recreated_total{queue=\"inventory.events\"} 1"), "{metrics}");
    Ok(())
}

/// RabbitMQ 3.10 goes on refusing on a channel that was refused once, although the queue has room again.
#[tokio::test]
async fn messages_are_confirmed_again_after_a_queue_was_full() -> anyhow::Result<()> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let vhost = Vhost::new().await?;
    let status = ConnectionStatus::new("test");
    let mut publisher = ConfirmingPublisher::new(vhost.endpoint(), status.clone(), DEADLINE);
    ready(&mut publisher).await?;
    vhost.set_policy(topology::BILLING, Some(r#"{"max-length": 5}"#)).await?;
    eventually("a message to be refused", DEADLINE, async || {
        ready(&mut publisher).await?;
        let outcomes = publisher.publish(&[&outgoing("OrderCreated"), &outgoing("OrderCreated")]).await;
        Ok(outcomes.contains(&PublishOutcome::Refused(Refusal::Nacked)).then_some(()))
    })
    .await?;
    ready(&mut publisher).await?;
    assert_eq!(status.state(), Err("a queue refuses messages, or does not confirm them".into()));
    let metrics = recorder.handle().render();
    assert!(metrics.contains("broker_connected{role=\"test\"} 1"), "the connection is open: {metrics}");
    vhost.set_policy(topology::BILLING, None).await?;
    while !vhost.is_empty(topology::BILLING).await? {
        vhost.take(topology::BILLING).await?;
    }
    eventually("a message to be confirmed", DEADLINE, async || {
        ready(&mut publisher).await?;
        let outcomes = publisher.publish(&[&outgoing("OrderCreated")]).await;
        Ok((outcomes == [PublishOutcome::Confirmed]).then_some(()))
    })
    .await
}

/// Events of a type that no queue is bound for are retried for minutes. They must not cost the others a connection each.
/// No service consumes it, and the mailer need not run. Returned, it would be tried thirteen times and parked.
#[tokio::test]
async fn confirmed_order_without_any_consumer_is_published_and_not_parked() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let batch = ["OrderConfirmed", "UnboundEvent", "OrderConfirmed"].map(outgoing);
    let outcomes = vhost.publisher().await?.publish(&batch.each_ref()).await;
    let returned = PublishOutcome::Refused(Refusal::Unroutable);
    assert_eq!(outcomes, [PublishOutcome::Confirmed, returned, PublishOutcome::Confirmed]);
    Ok(())
}

#[tokio::test]
async fn returned_messages_do_not_end_the_connection() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let status = ConnectionStatus::new("test");
    let mut publisher = ConfirmingPublisher::new(vhost.endpoint(), status.clone(), DEADLINE);
    ready(&mut publisher).await?;
    for _ in 0..20 {
        let batch = [outgoing("UnboundEvent"), outgoing("OrderCreated")];
        let expected = [PublishOutcome::Refused(Refusal::Unroutable), PublishOutcome::Confirmed];
        assert_eq!(publisher.publish(&refs(&batch)).await, expected);
        assert_eq!(status.state(), Ok(()), "the connection was closed");
        ready(&mut publisher).await?;
    }
    Ok(())
}

#[tokio::test]
async fn deleted_exchange_makes_the_outcome_unknown_and_is_declared_again() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let mut publisher = vhost.publisher().await?;
    vhost.channel.exchange_delete(topology::EVENTS.into(), ExchangeDeleteOptions::default()).await?;
    let message = outgoing("OrderCreated");
    let batch = &[&message];
    assert_eq!(
        publisher.publish(batch).await,
        [PublishOutcome::Unknown],
        "the event must stay in the outbox"
    );
    ready(&mut publisher).await?;
    assert_eq!(publisher.publish(batch).await, [PublishOutcome::Confirmed]);
    Ok(())
}

#[tokio::test]
async fn message_above_a_size_limit_is_refused_and_others_are_confirmed() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let mut trace = outgoing("OrderCreated");
    trace.traceparent = Some("0".repeat(20_000));
    // The type has 200 bytes, and its routing key twice as many.
    let name = outgoing(&"E".repeat(200));
    let mut large = outgoing("OrderCreated");
    large.body = vec![b' '; 2 * 1024 * 1024];
    // Many frames of the publisher's size, and below the limit.
    let mut frames = outgoing("OrderCreated");
    frames.body = vec![b' '; 512 * 1024];
    let batch = [outgoing("OrderCreated"), large, frames, trace, name, outgoing("OrderCreated")];
    let outcomes = vhost.publisher().await?.publish(&refs(&batch)).await;
    let (confirmed, too_large) = (PublishOutcome::Confirmed, PublishOutcome::Refused(Refusal::TooLarge));
    assert_eq!(outcomes, [confirmed, too_large, confirmed, too_large, too_large, confirmed]);
    Ok(())
}

#[tokio::test]
async fn silent_broker_is_unavailable_within_a_deadline() -> anyhow::Result<()> {
    // The listener accepts connections and never answers. lapin would wait for ever.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = Endpoint::new(&format!("amqp://shop:shop@{}/shop", listener.local_addr()?), "test")?;
    let mut publisher =
        ConfirmingPublisher::new(endpoint, ConnectionStatus::new("test"), Duration::from_secs(10));
    assert!(timeout(DEADLINE, publisher.ready()).await?.is_err());
    Ok(())
}

#[tokio::test]
async fn check_refuses_invalid_settings_only() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let check = async |url: &str| Endpoint::new(url, "test").unwrap().check().await;
    let url = vhost.url();
    let (address, _) = url.rsplit_once('/').unwrap();
    assert!(
        matches!(check(&format!("{address}/does-not-exist")).await, Err(Error::Refused(Fault::Setting, _))),
        "an unknown virtual host"
    );
    let unknown_user = url.replacen("amqp://", "amqp://unknown-", 1);
    let refused = check(&unknown_user).await;
    assert!(matches!(refused, Err(Error::Refused(Fault::Setting, _))), "an unknown user: {refused:?}");

    vhost.channel.queue_delete(topology::BILLING.into(), QueueDeleteOptions::default()).await?;
    let classic = QueueDeclareOptions { durable: true, ..Default::default() };
    vhost.channel.queue_declare(topology::BILLING.into(), classic, FieldTable::default()).await?;
    // An operator repairs the queue, not this process: it waits, and says why.
    check(&url).await?;
    let mut publisher = ConfirmingPublisher::new(vhost.endpoint(), ConnectionStatus::new("test"), DEADLINE);
    let refused = publisher.ready().await.unwrap_err().to_string();
    assert!(refused.contains("the broker refuses: PRECONDITION_FAILED - inequivalent arg"), "{refused}");

    // Bound without listening: connections to this port are refused while the socket exists.
    let socket = TcpSocket::new_v4()?;
    socket.bind("127.0.0.1:0".parse()?)?;
    check(&format!("amqp://shop:shop@{}/shop", socket.local_addr()?)).await?;
    Ok(())
}

#[test]
fn invalid_url_is_refused_and_the_error_does_not_show_its_password() {
    for url in [
        "",
        "hello",
        "shop:secret",
        "http://localhost:5672/shop",
        "amqp://localhost:5672/",
        "amqp://shop:secret@broker:port/shop",
        "ampq://shop:secret@broker/shop",
        // Without TLS, this would be sent in plain text.
        "amqps://shop:secret@localhost:5671/shop",
        // These would be taken for localhost, or for one name.
        "amqp://shop:secret@[fd00::5]:5672/shop",
        "amqp://shop:secret@one,two:5672/shop",
    ] {
        let error = Endpoint::new(url, "test").err().map(|error| error.to_string());
        assert!(error.as_deref().is_some_and(|error| !error.contains("secret")), "{url}: {error:?}");
    }
    assert!(Endpoint::new("amqp://shop:p%40ss@localhost:5672/shop", "test").is_ok());
}

/// As unknown, the same messages would be published again every few seconds, into the queues that do confirm too.
#[tokio::test]
async fn message_that_a_stuck_queue_does_not_confirm_is_refused_and_the_publisher_recovers()
-> anyhow::Result<()> {
    let rabbitmq = Rabbitmq::private().await?;
    let vhost = Vhost::at(rabbitmq.url()).await?;
    let status = ConnectionStatus::new("test");
    // A queue that is slow is not stuck.
    let mut patient = ConfirmingPublisher::new(vhost.endpoint(), status.register_user(), DEADLINE);
    ready(&mut patient).await?;
    rabbitmq.suspend_queue(topology::INVENTORY, true).await?;
    let message = outgoing("OrderCreated");
    let batch = [&message];
    let (outcomes, resumed) = tokio::join!(patient.publish(&batch), async {
        sleep(Duration::from_secs(1)).await;
        rabbitmq.suspend_queue(topology::INVENTORY, false).await
    });
    resumed?;
    assert_eq!(outcomes, [PublishOutcome::Confirmed]);
    let mut publisher = ConfirmingPublisher::new(vhost.endpoint(), status.clone(), Duration::from_secs(2));
    ready(&mut publisher).await?;
    assert_eq!(publisher.publish(&[&outgoing("OrderCreated")]).await, [PublishOutcome::Confirmed]);
    rabbitmq.suspend_queue(topology::INVENTORY, true).await?;
    let outcomes = publisher.publish(&[&outgoing("OrderCreated"), &outgoing("OrderCreated")]).await;
    assert_eq!(outcomes, [PublishOutcome::Refused(Refusal::Unconfirmed); 2]);
    assert_eq!(status.state(), Err("a queue refuses messages, or does not confirm them".into()));
    rabbitmq.suspend_queue(topology::INVENTORY, false).await?;
    eventually("a message to be confirmed", DEADLINE, async || {
        publisher.ready().await?;
        let outcomes = publisher.publish(&[&outgoing("OrderCreated")]).await;
        Ok((outcomes == [PublishOutcome::Confirmed]).then_some(()))
    })
    .await
}

/// The broker closes the channel over a message whose topic is not permitted, and says nothing about the others. Published
/// together again, they would never be confirmed.
#[tokio::test]
async fn message_over_which_the_broker_closes_the_channel_is_refused_and_others_are_confirmed()
-> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    vhost.permit_topics(topology::EVENTS, "order.created").await?;
    let mut publisher = vhost.publisher().await?;
    let batch: Vec<_> = (0..20)
        .map(|number| outgoing(if number % 8 == 3 { "OrderCancelled" } else { "OrderCreated" }))
        .collect();
    let expected = |event_type: &str| match event_type {
        "OrderCreated" => PublishOutcome::Confirmed,
        _ => PublishOutcome::Refused(Refusal::Rejected),
    };
    for _ in 0..2 {
        ready(&mut publisher).await?;
        for (message, outcome) in batch.iter().zip(publisher.publish(&refs(&batch)).await) {
            assert_eq!(outcome, expected(&message.event_type), "{}", message.event_type);
        }
    }
    let alone = [outgoing("OrderCancelled")];
    assert_eq!(publisher.publish(&refs(&alone)).await, [PublishOutcome::Refused(Refusal::Rejected)]);
    Ok(())
}

/// Without the permission for the exchange no message is to blame: none may be parked.
#[tokio::test]
async fn missing_permission_for_the_exchange_makes_the_outcome_unknown_and_health_says_so()
-> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let status = ConnectionStatus::new("test");
    let mut publisher = ConfirmingPublisher::new(vhost.endpoint(), status.clone(), DEADLINE);
    ready(&mut publisher).await?;
    vhost.permit_writes("nothing").await?;
    let batch = [outgoing("OrderCreated"), outgoing("OrderCreated")];
    assert_eq!(publisher.publish(&refs(&batch)).await, [PublishOutcome::Unknown; 2]);
    let state = status.state().unwrap_err();
    assert!(state.contains("refuses: ACCESS_REFUSED"), "{state}");
    vhost.permit_writes(".*").await?;
    eventually("the messages to be confirmed", DEADLINE, async || {
        publisher.ready().await?;
        Ok((publisher.publish(&refs(&batch)).await == [PublishOutcome::Confirmed; 2]).then_some(()))
    })
    .await?;
    status.state().map_err(anyhow::Error::msg)
}

/// A limit of connections ends by itself, such as when the old instance of a roll-out stops.
#[tokio::test]
async fn limit_of_connections_is_no_invalid_setting() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    vhost.limit_connections(Some(0)).await?;
    let endpoint = vhost.endpoint();
    endpoint.check().await?;
    let mut publisher =
        ConfirmingPublisher::new(endpoint, ConnectionStatus::new("test"), Duration::from_secs(10));
    let refused = publisher.ready().await.unwrap_err();
    assert!(refused.to_string().contains("limit"), "{refused}");
    vhost.limit_connections(None).await?;
    ready(&mut publisher).await
}
