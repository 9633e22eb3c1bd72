//! Consumers that cannot go on, or might not: their database is away or too slow, or the broker has raised an alarm.

use std::time::{Duration, Instant};

use messaging::{Failure, PublishOutcome, Refusal};
use metrics_exporter_prometheus::PrometheusBuilder;
use rabbitmq::{Endpoint, queues};
use testbed::Rabbitmq;
use uuid::Uuid;

use crate::{
    proxy::proxy_that_loses_deliveries,
    scripted::{ScriptedHandler, consume, consume_with, unavailable},
    support::{QUEUE, Running, Switch, TestPublisher, Vhost, order_created, outgoing, until},
};

/// A consumer whose handler is available until `is_away` is on.
fn consume_until(vhost: &Vhost, handler: &ScriptedHandler, is_away: &Switch) -> Running {
    let is_away = is_away.clone();
    consume_with(vhost.endpoint(), handler, |consumer| {
        consumer.when(move || if is_away.is_on() { Err("set by the test".into()) } else { Ok(()) })
    })
}

/// Has a consumer lose its database while it holds events, and a standby apply them. Returns how long that takes.
async fn lose_database(
    vhost: &Vhost,
    handler: &ScriptedHandler,
    events: &[Uuid],
) -> anyhow::Result<Duration> {
    let is_away = Switch::default();
    let _active = consume_until(vhost, handler, &is_away);
    handler.has_tried(events[0], 0).await?;
    let standby = ScriptedHandler::that_applies();
    let _standby = consume(vhost, &standby);
    is_away.set(true);
    let since = Instant::now();
    standby.has_applied_exactly(events).await?;
    Ok(since.elapsed())
}

/// Only one consumer of a queue receives messages. If that one has lost its database, another one must take over.
#[tokio::test]
async fn consumer_without_its_database_gives_messages_to_another_instance() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let events = vhost.put_events(20).await?;
    let took = lose_database(&vhost, &ScriptedHandler::that_waits(), &events).await?;
    // A restart of the database must not move the messages back and forth.
    assert!(took >= Duration::from_secs(15), "given up after {took:?}");
    assert!(vhost.is_empty(&queues::dead_letter_queue(QUEUE)).await?);
    Ok(())
}

/// A handler that never returns, as with a database that accepts connections and stays silent.
#[tokio::test]
async fn hanging_handler_without_its_database_gives_messages_to_another_instance() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let events = vhost.put_events(1).await?;
    lose_database(&vhost, &ScriptedHandler::that_hangs(), &events).await.map(drop)
}

/// Thirty lost connections while the database is away would otherwise count as thirty deliveries of one message.
#[tokio::test]
async fn consumer_without_its_database_takes_no_messages() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let is_away = Switch::default();
    is_away.set(true);
    let handler = ScriptedHandler::that_applies();
    let event = vhost.put_event().await?;
    let waiting = consume_until(&vhost, &handler, &is_away);
    // The other consumer would not receive anything if the first one had subscribed.
    let other = ScriptedHandler::that_applies();
    let consumer = consume(&vhost, &other);
    other.has_applied(&[event]).await?;
    consumer.stop().await?;
    assert_eq!(handler.tries(event), 0);
    is_away.set(false);
    handler.has_applied(&[vhost.put_event().await?]).await?;
    waiting.stop().await
}

/// A group that the database cannot apply in time would be tried again forever, and block everything behind it.
#[tokio::test]
async fn group_that_is_too_slow_is_halved_and_keeps_its_order() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let ids = vhost.put_events(100).await?;
    let mut handler = ScriptedHandler::that_applies();
    handler.fast_enough = 3;
    let _consumer = consume(&vhost, &handler);
    handler.has_applied_exactly(&ids).await?;
    assert_eq!(handler.letters.letters(), []);
    Ok(())
}

/// A memory alarm keeps the broker from taking messages. Consumers must go on: they are what frees memory.
#[tokio::test]
async fn alarm_of_the_broker_stops_no_consumer_that_has_to_set_a_message_aside() -> anyhow::Result<()> {
    let rabbitmq = Rabbitmq::private().await?;
    let vhost = Vhost::at(rabbitmq.url()).await?;
    vhost.put(QUEUE, "poison", b"not json").await?;
    let ids = vhost.put_events(50).await?;
    rabbitmq.set_memory_limit("1").await?;
    let handler = ScriptedHandler::that_applies();
    let _consumer = consume(&vhost, &handler);
    handler.has_applied_exactly(&ids).await?;
    assert_eq!(handler.letters.letters()[0].reason, "malformed");
    Ok(())
}

/// The broker is fine and messages wait, but one group takes forever.
#[tokio::test]
async fn health_shows_a_consumer_that_makes_no_progress() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let event = vhost.put_event().await?;
    let released = Switch::default();
    let is_released = released.clone();
    let handler = ScriptedHandler::new(move |_, _| {
        if is_released.is_on() { Ok(()) } else { Err(Failure::TooSlow("a lock".into())) }
    });
    let consumer = consume(&vhost, &handler);
    consumer.until_failing("no progress").await?;
    released.set(true);
    handler.has_applied(&[event]).await?;
    consumer.until_working().await
}

/// RabbitMQ reports a queue whose leader is silent as empty, and without consumers. Orders are cancelled when a queue
/// is empty.
#[tokio::test]
async fn queue_with_a_silent_leader_does_not_count_as_empty() -> anyhow::Result<()> {
    let broker = Rabbitmq::private().await?;
    let vhost = Vhost::at(broker.url()).await?;
    let consumer = consume(&vhost, &ScriptedHandler::that_applies());
    vhost.put_event().await?;
    until("an empty queue to be found", || consumer.status.caught_up().is_some()).await?;
    broker.suspend_queue(QUEUE, true).await?;
    until("it to be unknown", || consumer.status.caught_up().is_none()).await?;
    broker.suspend_queue(QUEUE, false).await?;
    until("it to be empty again", || consumer.status.caught_up().is_some()).await
}

/// Another node may know a leader: this one may be cut off from a majority, and go on serving clients.
#[tokio::test]
async fn next_node_is_taken_when_no_leader_of_a_queue_answers() -> anyhow::Result<()> {
    let broker = Rabbitmq::private().await?;
    let vhost = Vhost::at(broker.url()).await?;
    // One broker that is named twice.
    let endpoint = Endpoint::new(&broker.url().replacen('@', &format!("@{},", broker.address()), 1), "test")?;
    let mut publisher = TestPublisher::new(endpoint.clone(), Duration::from_secs(2));
    publisher.until_confirmed().await?;
    let handler = ScriptedHandler::that_applies();
    let consumer = consume_with(endpoint, &handler, |consumer| consumer);
    consumer.until_working().await?;

    broker.suspend_queue(QUEUE, true).await?;
    let outcomes = publisher.publish(&[outgoing("OrderCreated")]).await;
    assert_eq!(outcomes, [PublishOutcome::Refused(Refusal::Unconfirmed)]);
    let address = broker.address();
    assert!(publisher.status.state().is_err_and(|reason| reason.contains(&address)), "it stays connected");
    consumer.until_failing("the leader of the queue does not answer").await?;

    broker.suspend_queue(QUEUE, false).await?;
    publisher.until_confirmed().await?;
    let event = vhost.put_event().await?;
    handler.has_applied(&[event]).await
}

/// A client of someone else is the active consumer and holds all messages, so that none waits in the queue. Orders are
/// cancelled when a queue is empty and its consumer is known.
#[tokio::test]
async fn consumer_of_an_empty_queue_whose_messages_another_client_holds_is_not_active() -> anyhow::Result<()>
{
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let vhost = Vhost::new().await?;
    let (held, _other) = vhost.consume(QUEUE, 0).await?;
    let handler = ScriptedHandler::that_applies();
    let consumer = consume(&vhost, &handler);
    let event = vhost.put_event().await?;
    until("the consumer to check its queue", || {
        let metrics = recorder.handle().render();
        metrics.contains("broker_consumer_active{queue=\"inventory.events\"} 0")
            && metrics.contains("broker_queue_ready{queue=\"inventory.events\"} 0")
    })
    .await?;
    assert_ne!(consumer.status.caught_up(), Some(true));
    held.close(200, "done".into()).await?;
    handler.has_applied(&[event]).await?;
    until("the queue to be its own", || consumer.status.caught_up() == Some(true)).await
}

/// A proxy has lost a delivery, or another consumer is the active one by now, and the broker does not say so.
#[tokio::test]
async fn consumer_connects_again_when_messages_wait_and_none_is_delivered() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let (endpoint, loses) = proxy_that_loses_deliveries(&vhost).await?;
    let handler = ScriptedHandler::that_applies();
    let consumer = consume_with(endpoint, &handler, |consumer| consumer.prefetch(1));
    consumer.until_working().await?;
    loses.set(true);
    let events = vhost.put_events(2).await?;
    consumer.until_failing("none is delivered").await?;
    loses.set(false);
    handler.has_applied_exactly(&events).await
}

/// The broker has delivered everything, so nothing waits there. Orders are cancelled when all answers are applied.
#[tokio::test]
async fn queue_does_not_count_as_empty_while_the_consumer_holds_messages() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let ids = vhost.put_events(300).await?;
    let (first, last) = (ids[0], ids[299]);
    let (begin, end) = (Switch::default(), Switch::default());
    let released = (begin.clone(), end.clone());
    let handler = ScriptedHandler::new(move |event, _| {
        let waits = (event.id == first && !released.0.is_on()) || (event.id == last && !released.1.is_on());
        if waits { Err(unavailable()) } else { Ok(()) }
    });
    let consumer = consume(&vhost, &handler);
    vhost.until_delivered().await?;
    // The first group takes so long that the consumer checks its queue before the next one.
    tokio::time::sleep(Duration::from_secs(6)).await;
    begin.set(true);
    handler.has_tried(last, 0).await?;
    assert_eq!(consumer.status.caught_up(), None);
    end.set(true);
    until("the queue to be empty", || consumer.status.caught_up() == Some(true)).await
}

/// Two hundred large messages in one group would be held several times over.
#[tokio::test]
async fn group_of_large_messages_is_limited_by_their_size() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let released = Switch::default();
    let handler = ScriptedHandler::that_waits_for(&released);
    let _consumer = consume(&vhost, &handler);
    let mut ids = vec![];
    for _ in 0..200 {
        let event = order_created();
        let body = event.payload + &" ".repeat(100_000);
        ids.push(event.event_id);
        vhost.put(QUEUE, &event.event_id.to_string(), body.as_bytes()).await?;
    }
    vhost.until_delivered().await?;
    released.set(true);
    handler.has_applied_exactly(&ids).await?;
    let largest = handler.record.lock().unwrap().largest_group;
    assert!(largest <= 84, "{largest} messages of a hundred kilobytes in a group");
    Ok(())
}
