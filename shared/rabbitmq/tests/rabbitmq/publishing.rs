use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use futures_util::StreamExt;
use lapin::{
    ExchangeKind,
    options::{
        BasicAckOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions,
        QueueDeclareOptions, QueueDeleteOptions,
    },
    types::FieldTable,
};
use messaging::{Outgoing, PublishOutcome, Publisher as _, Refusal};
use metrics_exporter_prometheus::PrometheusBuilder;
use rabbitmq::{Endpoint, Error, Fault, queues};
use testbed::{Rabbitmq, eventually};
use tokio::{
    net::{TcpListener, TcpSocket},
    time::{sleep, timeout},
};
use uuid::Uuid;

use crate::{
    proxy::{Hold, proxy},
    support::{DEADLINE, TestPublisher, Vhost, outgoing},
};

const CONFIRMED: PublishOutcome = PublishOutcome::Confirmed;
const UNROUTABLE: PublishOutcome = PublishOutcome::Refused(Refusal::Unroutable);

/// What health says while a queue is full or stuck.
const REFUSED: &str = "a queue refuses messages, or does not confirm them";

#[tokio::test]
async fn confirmed_message_is_in_every_bound_queue_with_its_properties() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let message = outgoing("OrderCreated");
    assert_eq!(vhost.publisher().await?.publisher.publish(&[&message]).await, [CONFIRMED]);
    for queue in [queues::INVENTORY, queues::BILLING] {
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
        let is_unbound = |number| number % 5 == 0;
        let batch: Vec<_> = (0..1000)
            .map(|number| outgoing(if is_unbound(number) { "UnboundEvent" } else { "OrderCreated" }))
            .collect();
        publisher.until_ready().await?;
        let outcomes = publisher.publish(&batch).await;
        let expected = (0..1000).map(|number| if is_unbound(number) { UNROUTABLE } else { CONFIRMED });
        assert_eq!(outcomes, expected.collect::<Vec<_>>());
    }
    Ok(())
}

/// While bindings are restored one after the other, a message reaches one queue of two, and its confirm looks like any other.
#[tokio::test]
async fn confirm_proves_nothing_where_bindings_were_restored_within_the_batch() -> anyhow::Result<()> {
    const WITNESS: &str = "witness";
    let vhost = Vhost::new().await?;
    let channel = vhost.open_channel().await?;
    channel.queue_declare(WITNESS.into(), QueueDeclareOptions::default(), FieldTable::default()).await?;
    for key in ["order.witness", "order.marker"] {
        let options = QueueBindOptions::default();
        channel
            .queue_bind(WITNESS.into(), queues::EVENTS.into(), key.into(), options, FieldTable::default())
            .await?;
    }
    // What lies between the first message and the marker is more than the proxy reads at once.
    let filler = |_| Outgoing { body: vec![0; 100_000], ..outgoing("OrderWitness") };
    let mut batch = vec![outgoing("OrderCreated"), outgoing("OrderWitness")];
    batch.extend((0..3).map(filler));
    batch.extend(["OrderMarker", "OrderCreated", "OrderCancelled"].map(outgoing));

    let (endpoint, hold) = Hold::request(&vhost, &[b"order.marker"]).await?;
    let mut publisher = TestPublisher::new(endpoint, DEADLINE);
    publisher.until_ready().await?;
    for queue in [queues::INVENTORY, queues::BILLING] {
        let (exchange, key) = (queues::EVENTS.into(), "order.created".into());
        channel.queue_unbind(queue.into(), exchange, key, FieldTable::default()).await?;
    }
    let restore_one = async {
        hold.sent().await?;
        // The broker has seen the first creation, and not the second.
        eventually("a message behind the first creation to arrive", DEADLINE, async || {
            Ok((vhost.counts(WITNESS).await?.0 > 0).then_some(()))
        })
        .await?;
        let (exchange, key) = (queues::EVENTS.into(), "order.created".into());
        let options = QueueBindOptions::default();
        channel.queue_bind(queues::INVENTORY.into(), exchange, key, options, FieldTable::default()).await?;
        hold.release();
        anyhow::Ok(())
    };
    let (outcomes, restored) = tokio::join!(publisher.publish(&batch), restore_one);
    restored?;
    assert_eq!(outcomes[0], UNROUTABLE, "the publisher has declared the bindings again before the batch");
    assert_eq!(outcomes[6], PublishOutcome::Unknown, "billing has not received it");
    assert_eq!(outcomes[7], CONFIRMED, "another route");
    // The bindings are declared before the next attempt.
    publisher.until_ready().await?;
    assert_eq!(publisher.publish(&batch[6..7]).await, [CONFIRMED]);
    vhost.take(queues::BILLING).await?;
    Ok(())
}

#[tokio::test]
async fn deleted_queues_are_declared_again() -> anyhow::Result<()> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let vhost = Vhost::new().await?;
    let mut publisher = vhost.publisher().await?;
    let metrics = recorder.handle().render();
    assert!(metrics.contains("broker_queues_recreated_total{queue=\"inventory.events\"} 0"), "{metrics}");
    // Every five seconds the publisher declares them, perhaps at this moment.
    eventually("a message to be returned", DEADLINE, async || {
        for queue in [queues::INVENTORY, queues::BILLING] {
            vhost.channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
        }
        Ok((publisher.publish(&[outgoing("OrderCreated")]).await == [UNROUTABLE]).then_some(()))
    })
    .await?;
    publisher.until_confirmed().await?;
    let metrics = recorder.handle().render();
    assert!(!metrics.contains("broker_queues_recreated_total{queue=\"inventory.events\"} 0"), "{metrics}");
    Ok(())
}

/// The process that would have noticed is gone.
#[tokio::test]
async fn queue_that_was_deleted_while_all_services_were_stopped_is_counted() -> anyhow::Result<()> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let vhost = Vhost::new().await?;
    vhost.channel.queue_delete(queues::BILLING.into(), QueueDeleteOptions::default()).await?;
    vhost.endpoint().check().await?;
    let metrics = recorder.handle().render();
    assert!(metrics.contains("broker_queues_recreated_total{queue=\"billing.events\"} 1"), "{metrics}");
    assert!(metrics.contains("broker_queues_recreated_total{queue=\"inventory.events\"} 0"), "{metrics}");
    Ok(())
}

#[tokio::test]
async fn deleted_exchange_makes_the_outcome_unknown_and_is_declared_again() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let mut publisher = vhost.publisher().await?;
    let batch = [outgoing("OrderCreated")];
    // Every five seconds the publisher declares it, perhaps at this moment.
    eventually("an unknown outcome, so that the event stays in the outbox", DEADLINE, async || {
        vhost.channel.exchange_delete(queues::EVENTS.into(), ExchangeDeleteOptions::default()).await?;
        Ok((publisher.publish(&batch).await == [PublishOutcome::Unknown]).then_some(()))
    })
    .await?;
    publisher.until_ready().await?;
    assert_eq!(publisher.publish(&batch).await, [CONFIRMED]);
    Ok(())
}

/// RabbitMQ 3.10 goes on refusing on a channel that was refused once, although the queue has room again.
#[tokio::test]
async fn messages_are_confirmed_again_after_a_queue_was_full() -> anyhow::Result<()> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let vhost = Vhost::new().await?;
    let mut publisher = vhost.publisher().await?;
    vhost.operator().set_policy(queues::BILLING, Some(r#"{"max-length": 5}"#)).await?;
    eventually("a message to be refused", DEADLINE, async || {
        publisher.until_ready().await?;
        let outcomes = publisher.publish(&["OrderCreated"; 2].map(outgoing)).await;
        Ok(outcomes.contains(&PublishOutcome::Refused(Refusal::Nacked)).then_some(()))
    })
    .await?;
    publisher.until_ready().await?;
    assert_eq!(publisher.status.state(), Err(REFUSED.into()));
    let metrics = recorder.handle().render();
    assert!(metrics.contains("broker_connected{role=\"test\"} 1"), "the connection is open: {metrics}");
    vhost.operator().set_policy(queues::BILLING, None).await?;
    while !vhost.is_empty(queues::BILLING).await? {
        vhost.take(queues::BILLING).await?;
    }
    publisher.until_confirmed().await
}

/// Events of a type that no queue is bound for are retried for minutes. They must not cost the others a connection each. No
/// service consumes `OrderConfirmed`, and the mailer need not run: returned, it would be tried again and parked.
#[tokio::test]
async fn returned_messages_do_not_end_the_connection() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let mut publisher = vhost.publisher().await?;
    for _ in 0..20 {
        let batch = ["OrderConfirmed", "UnboundEvent", "OrderCreated"].map(outgoing);
        assert_eq!(publisher.publish(&batch).await, [CONFIRMED, UNROUTABLE, CONFIRMED]);
        assert_eq!(publisher.status.state(), Ok(()), "the connection was closed");
        publisher.until_ready().await?;
    }
    Ok(())
}

/// Then a confirm does not say that a service has received the event.
#[tokio::test]
async fn alternate_exchange_by_a_policy_is_noticed() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let (exchange, queue) = ("elsewhere", "nowhere");
    let channel = &vhost.channel;
    let (options, none) = (ExchangeDeclareOptions::default(), FieldTable::default());
    channel.exchange_declare(exchange.into(), ExchangeKind::Fanout, options, none.clone()).await?;
    channel.queue_declare(queue.into(), QueueDeclareOptions::default(), none.clone()).await?;
    let options = QueueBindOptions::default();
    channel.queue_bind(queue.into(), exchange.into(), "".into(), options, none).await?;
    let mut publisher = vhost.publisher().await?;
    publisher.until_confirmed().await?;
    publisher.until_ready().await?;
    assert_eq!(publisher.status.state(), Ok(()));
    let policy = r#"{"alternate-exchange": "elsewhere"}"#;
    vhost.operator().set_policy(queues::EVENTS, Some(policy)).await?;
    // A publisher checks it with its first batch, and then once a minute.
    eventually("health to show it", DEADLINE, async || {
        let mut publisher = vhost.publisher().await?;
        publisher.until_confirmed().await?;
        publisher.until_ready().await?;
        let shown = publisher.status.state();
        Ok(shown.is_err_and(|reason| reason.contains("alternate exchange")).then_some(()))
    })
    .await
}

#[tokio::test]
async fn message_above_a_size_limit_is_refused_and_others_are_confirmed() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let [first, mut large, mut frames, mut trace, last] = ["OrderCreated"; 5].map(outgoing);
    large.body = vec![b' '; 256 * 1024];
    // Several frames of the publisher's size, and below the limit.
    frames.body = vec![b' '; 100 * 1024];
    trace.traceparent = Some("0".repeat(20_000));
    // The type has 200 bytes, and its routing key twice as many.
    let name = outgoing(&"E".repeat(200));
    let outcomes = vhost.publisher().await?.publish(&[first, large, frames, trace, name, last]).await;
    let too_large = PublishOutcome::Refused(Refusal::TooLarge);
    assert_eq!(outcomes, [CONFIRMED, too_large, CONFIRMED, too_large, too_large, CONFIRMED]);
    Ok(())
}

#[tokio::test]
async fn silent_broker_is_unavailable_within_a_deadline() -> anyhow::Result<()> {
    // The listener accepts connections and never answers. lapin would wait forever.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = Endpoint::new(&format!("amqp://shop:shop@{}/shop", listener.local_addr()?), "test")?;
    let mut publisher = TestPublisher::new(endpoint, DEADLINE).publisher;
    assert!(timeout(DEADLINE, publisher.ready()).await?.is_err());
    Ok(())
}

/// A cluster of which one node is down and one is frozen, as a client sees it.
#[tokio::test]
async fn next_node_is_taken_when_one_is_down_or_silent() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    // Bound without listening: connections to this port are refused while the socket exists.
    let socket = TcpSocket::new_v4()?;
    socket.bind("127.0.0.1:0".parse()?)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (down, silent) = (socket.local_addr()?.to_string(), listener.local_addr()?.to_string());
    let all = vhost.url.replacen('@', &format!("@{down},{silent},"), 1);
    let endpoint = Endpoint::new(&all, "test")?;
    // Each publisher begins at a random node.
    for _ in 0..5 {
        TestPublisher::new(endpoint.clone(), DEADLINE).until_confirmed().await?;
    }
    let unknown_user = Endpoint::new(&all.replacen("amqp://", "amqp://unknown-", 1), "test")?;
    assert!(matches!(unknown_user.check().await, Err(Error::Refused(Fault::Setting, _))));

    let none = Endpoint::new(&format!("amqp://shop:secret@{down},{silent}/shop"), "test")?;
    let mut publisher = TestPublisher::new(none, DEADLINE);
    let mut named = vec![];
    for _ in 0..2 {
        let reason = publisher.publisher.ready().await.unwrap_err().to_string();
        assert!(!reason.contains("secret"), "{reason}");
        assert!(publisher.status.state().is_err_and(|shown| reason.ends_with(&shown)), "{reason}");
        named.extend([&down, &silent].into_iter().filter(|node| reason.contains(*node)));
    }
    named.sort();
    let mut both = [&down, &silent];
    both.sort();
    assert_eq!(named, both);
    Ok(())
}

#[tokio::test]
async fn check_refuses_invalid_settings_only() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let check = async |url: &str| Endpoint::new(url, "test").unwrap().check().await;
    let (address, _) = vhost.url.rsplit_once('/').unwrap();
    let unknown_user = vhost.url.replacen("amqp://", "amqp://unknown-", 1);
    for invalid in [format!("{address}/does-not-exist"), unknown_user] {
        let refused = check(&invalid).await;
        assert!(matches!(refused, Err(Error::Refused(Fault::Setting, _))), "{invalid}: {refused:?}");
    }
    vhost.channel.queue_delete(queues::BILLING.into(), QueueDeleteOptions::default()).await?;
    let classic = QueueDeclareOptions { durable: true, ..Default::default() };
    vhost.channel.queue_declare(queues::BILLING.into(), classic, FieldTable::default()).await?;
    // An operator repairs the queue, not this process: it waits, and says why.
    check(&vhost.url).await?;
    let mut publisher = TestPublisher::new(vhost.endpoint(), DEADLINE).publisher;
    let refused = publisher.ready().await.unwrap_err().to_string();
    assert!(refused.contains("the broker refuses: PRECONDITION_FAILED - inequivalent arg"), "{refused}");

    // Bound without listening: connections to this port are refused while the socket exists.
    let socket = TcpSocket::new_v4()?;
    socket.bind("127.0.0.1:0".parse()?)?;
    check(&format!("amqp://shop:shop@{}/shop", socket.local_addr()?)).await?;
    Ok(())
}

/// A limit of connections ends by itself, for example when the old instance of a roll-out stops.
#[tokio::test]
async fn limit_of_connections_is_no_invalid_setting() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    vhost.operator().limit_connections(Some(0)).await?;
    vhost.endpoint().check().await?;
    let mut publisher = TestPublisher::new(vhost.endpoint(), DEADLINE);
    let refused = publisher.publisher.ready().await.unwrap_err();
    assert!(refused.to_string().contains("limit"), "{refused}");
    vhost.operator().limit_connections(None).await?;
    publisher.until_ready().await
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
        // A part of these would be taken for localhost.
        "amqp://shop:secret@[fd00::5]:5672/shop",
        "amqp://shop:secret@one,[fd00::5]:5672/shop",
        "amqp://shop:secret@one,,two:5672/shop",
        "amqp://shop:secret@one,two:port/shop",
    ] {
        let error = Endpoint::new(url, "test").err().map(|error| error.to_string());
        assert!(error.as_deref().is_some_and(|error| !error.contains("secret")), "{url}: {error:?}");
    }
    assert!(Endpoint::new("amqp://shop:p%40ss@localhost:5672/shop", "test").is_ok());
}

/// Publishes until the broker has answered in time: while it gets no processor, outcomes are unknown.
async fn until_known(
    mut publish: impl AsyncFnMut() -> anyhow::Result<Vec<PublishOutcome>>,
) -> anyhow::Result<Vec<PublishOutcome>> {
    eventually("the broker to answer in time", DEADLINE, async || {
        let outcomes = publish().await?;
        Ok((!outcomes.contains(&PublishOutcome::Unknown)).then_some(outcomes))
    })
    .await
}

/// As unknown, the same messages would be published again every few seconds, into the queues that do confirm too.
#[tokio::test]
async fn message_that_a_stuck_queue_does_not_confirm_is_refused_and_the_publisher_recovers()
-> anyhow::Result<()> {
    let rabbitmq = Rabbitmq::private().await?;
    let vhost = Vhost::at(rabbitmq.url()).await?;
    // A queue that is slow is not stuck.
    let mut patient = vhost.publisher().await?;
    let outcomes = until_known(async || {
        patient.until_ready().await?;
        rabbitmq.suspend_queue(queues::INVENTORY, true).await?;
        let batch = [outgoing("OrderCreated")];
        let (outcomes, resumed) = tokio::join!(patient.publish(&batch), async {
            sleep(Duration::from_secs(1)).await;
            rabbitmq.suspend_queue(queues::INVENTORY, false).await
        });
        resumed.map(|()| outcomes)
    });
    assert_eq!(outcomes.await?, [CONFIRMED]);
    let mut publisher = vhost.publisher_with(Duration::from_secs(2)).await?;
    let outcomes = until_known(async || {
        // A stuck queue cannot be declared again.
        rabbitmq.suspend_queue(queues::INVENTORY, false).await?;
        publisher.until_confirmed().await?;
        rabbitmq.suspend_queue(queues::INVENTORY, true).await?;
        Ok(publisher.publish(&["OrderCreated"; 2].map(outgoing)).await)
    });
    assert_eq!(outcomes.await?, [PublishOutcome::Refused(Refusal::Unconfirmed); 2]);
    assert_eq!(publisher.status.state(), Err(REFUSED.into()));
    rabbitmq.suspend_queue(queues::INVENTORY, false).await?;
    publisher.until_confirmed().await
}

/// The broker closes the channel over a message whose topic is not permitted, and says nothing about the others. Published
/// together again, they would never be confirmed.
#[tokio::test]
async fn message_over_which_the_broker_closes_the_channel_is_refused_and_others_are_confirmed()
-> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    vhost.operator().permit_topics(queues::EVENTS, "order.created").await?;
    let mut publisher = vhost.publisher().await?;
    let rejected = PublishOutcome::Refused(Refusal::Rejected);
    let is_permitted = |number| number % 8 != 3;
    let batch: Vec<_> = (0..20)
        .map(|number| outgoing(if is_permitted(number) { "OrderCreated" } else { "OrderCancelled" }))
        .collect();
    let expected: Vec<_> =
        (0..20).map(|number| if is_permitted(number) { CONFIRMED } else { rejected }).collect();
    for _ in 0..2 {
        publisher.until_ready().await?;
        assert_eq!(publisher.publish(&batch).await, expected);
    }
    assert_eq!(publisher.publish(&[outgoing("OrderCancelled")]).await, [rejected]);
    Ok(())
}

/// Without the permission for the exchange no message is to blame: none may be parked.
#[tokio::test]
async fn missing_permission_for_the_exchange_makes_the_outcome_unknown_and_health_says_so()
-> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let mut publisher = vhost.publisher().await?;
    vhost.operator().permit_writes("nothing").await?;
    let outcomes = publisher.publish(&["OrderCreated"; 2].map(outgoing)).await;
    assert_eq!(outcomes, [PublishOutcome::Unknown; 2]);
    let state = publisher.status.state().unwrap_err();
    assert!(state.contains("refuses: ACCESS_REFUSED"), "{state}");
    vhost.operator().permit_writes(".*").await?;
    publisher.until_confirmed().await?;
    publisher.status.state().map_err(anyhow::Error::msg)
}

/// In the handshake, in a frame, between publish and confirm.
#[tokio::test]
async fn connection_cut_after_any_number_of_bytes_loses_no_confirmed_message() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let (mut confirmed, mut cut) = (HashSet::new(), 0);
    for bytes in (0..26_000_usize).step_by(487) {
        // Only the first connection is cut, so a later attempt confirms the rest.
        let endpoint = proxy(&vhost, move |(connection, before, sent)| match connection {
            0 => bytes.saturating_sub(before).min(sent.len()),
            _ => sent.len(),
        });
        // A queue that is slower to confirm counts as stuck.
        let mut publisher = TestPublisher::new(endpoint.await?, Duration::from_secs(20));
        let mut batch = ["OrderCreated"; 20].map(outgoing).to_vec();
        let (began, mut attempts) = (Instant::now(), 0);
        while !batch.is_empty() {
            let pending = batch.len();
            anyhow::ensure!(began.elapsed() < DEADLINE, "cut after {bytes} bytes: {pending} are pending");
            attempts += 1;
            if publisher.publisher.ready().await.is_err() {
                continue;
            }
            let outcomes = publisher.publish(&batch).await;
            assert_eq!(outcomes.len(), batch.len());
            let mut unconfirmed = vec![];
            for (message, outcome) in batch.into_iter().zip(outcomes) {
                match outcome {
                    PublishOutcome::Confirmed => _ = confirmed.insert(message.id),
                    PublishOutcome::Unknown => unconfirmed.push(message),
                    PublishOutcome::Refused(refusal) => anyhow::bail!("cut after {bytes} bytes: {refusal}"),
                }
            }
            batch = unconfirmed;
        }
        cut += usize::from(attempts > 1);
    }
    assert!(cut > 30, "only {cut} connections were cut");

    // Each confirmed message is in the queue. Copies are too: consumers drop them.
    let (_channel, mut deliveries) = vhost.consume(queues::INVENTORY, 1_000).await?;
    while !confirmed.is_empty() {
        let Ok(Some(delivery)) = timeout(DEADLINE, deliveries.next()).await else {
            anyhow::bail!("{} are missing", confirmed.len())
        };
        let delivery = delivery?;
        let id: Uuid = delivery.properties.message_id().as_ref().unwrap().as_str().parse()?;
        confirmed.remove(&id);
        delivery.ack(BasicAckOptions::default()).await?;
    }
    Ok(())
}
