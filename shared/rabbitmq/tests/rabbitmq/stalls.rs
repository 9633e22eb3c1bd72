//! Consumers that cannot go on, or might not: their database is away or too slow, or the broker has raised an alarm.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use events::Event;
use lapin::options::BasicConsumeOptions;
use messaging::{Applied, Failure, Handler};
use metrics_exporter_prometheus::PrometheusBuilder;
use rabbitmq::{ConnectionStatus, Consumer, topology};
use testbed::{Rabbitmq, eventually};

use crate::{
    scripted_handler::{QUEUE, ScriptedHandler, consume, unavailable},
    scripted_store::ScriptedStore,
    support::{DEADLINE, Running, Vhost, order_created},
};

/// A consumer whose handler is available while `available` is set.
fn consume_when(vhost: &Vhost, handler: &ScriptedHandler, available: &Arc<AtomicBool>) -> Running {
    let status = ConnectionStatus::new("test");
    let available = available.clone();
    let consumer = Consumer::new(vhost.endpoint(), QUEUE, status)
        .when(move || if available.load(Ordering::SeqCst) { Ok(()) } else { Err("set by the test".into()) });
    Running::start(|stop| consumer.run(handler.clone(), handler.letters.clone(), stop))
}

/// Only one consumer of a queue receives messages. If that one has lost its database, another one has to take over.
#[tokio::test]
async fn consumer_without_its_database_gives_messages_to_another_instance() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let available = Arc::new(AtomicBool::new(true));
    let without_database = ScriptedHandler::new(|_, _| Err(unavailable()));
    let _active = consume_when(&vhost, &without_database, &available);
    let events: Vec<_> = (0..20).map(|_| order_created()).collect();
    for event in &events {
        vhost.put_event(QUEUE, event).await?;
    }
    let first = events[0].event_id;
    eventually("a first try", DEADLINE, async || Ok((without_database.tries(first) > 0).then_some(())))
        .await?;
    let standby = ScriptedHandler::that_applies();
    let _standby = consume(&vhost, &standby);
    available.store(false, Ordering::SeqCst);
    let since = Instant::now();
    let ids: Vec<_> = events.iter().map(|event| event.event_id).collect();
    standby.has_applied(&ids).await?;
    assert_eq!(standby.applied(), ids);
    // A restart of the database must not move the messages back and forth.
    assert!(since.elapsed() >= Duration::from_secs(15), "given up after {:?}", since.elapsed());
    assert!(vhost.is_empty(&topology::dead_letter_queue(QUEUE)).await?);
    Ok(())
}

/// A handler that never returns, as with a database that accepts connections and stays silent.
#[tokio::test]
async fn hanging_handler_without_its_database_gives_messages_to_another_instance() -> anyhow::Result<()> {
    #[derive(Clone, Default)]
    struct Hanging(Arc<AtomicBool>);

    impl Handler for Hanging {
        async fn apply(&self, _: &[Event]) -> Result<Applied, Failure> {
            self.0.store(true, Ordering::SeqCst);
            std::future::pending().await
        }
    }

    let vhost = Vhost::new().await?;
    let event = order_created();
    vhost.put_event(QUEUE, &event).await?;
    let (hanging, available) = (Hanging::default(), Arc::new(AtomicBool::new(true)));
    let (handler, is_available) = (hanging.clone(), available.clone());
    let consumer = Consumer::new(vhost.endpoint(), QUEUE, ConnectionStatus::new("test")).when(move || {
        if is_available.load(Ordering::SeqCst) { Ok(()) } else { Err("set by the test".into()) }
    });
    let _active = Running::start(|stop| consumer.run(handler, ScriptedStore::that_saves(), stop));
    eventually("a first try", DEADLINE, async || Ok(hanging.0.load(Ordering::SeqCst).then_some(()))).await?;
    let standby = ScriptedHandler::that_applies();
    let _standby = consume(&vhost, &standby);
    available.store(false, Ordering::SeqCst);
    standby.has_applied(&[event.event_id]).await
}

/// Thirty lost connections while the database is away would otherwise count as thirty deliveries of one message.
#[tokio::test]
async fn consumer_without_its_database_takes_no_messages() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let available = Arc::new(AtomicBool::new(false));
    let handler = ScriptedHandler::that_applies();
    let event = order_created();
    vhost.put_event(QUEUE, &event).await?;
    let waiting = consume_when(&vhost, &handler, &available);
    // The other consumer would not receive anything if the first one had subscribed.
    let other = ScriptedHandler::that_applies();
    let consumer = consume(&vhost, &other);
    other.has_applied(&[event.event_id]).await?;
    consumer.stop().await?;
    assert_eq!(handler.tries(event.event_id), 0);
    available.store(true, Ordering::SeqCst);
    let next = order_created();
    vhost.put_event(QUEUE, &next).await?;
    handler.has_applied(&[next.event_id]).await?;
    waiting.stop().await
}

/// A group that the database cannot apply in time would be tried again for ever, and block everything behind it.
#[tokio::test]
async fn group_that_is_too_slow_is_halved_and_keeps_its_order() -> anyhow::Result<()> {
    const FAST_ENOUGH: usize = 3;

    #[derive(Clone)]
    struct Slow(ScriptedHandler);

    impl Handler for Slow {
        async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
            if group.len() > FAST_ENOUGH {
                return Err(Failure::TooSlow("canceling statement due to statement timeout".into()));
            }
            self.0.apply(group).await
        }
    }

    let vhost = Vhost::new().await?;
    let mut ids = vec![];
    for _ in 0..100 {
        let event = order_created();
        ids.push(event.event_id);
        vhost.put_event(QUEUE, &event).await?;
    }
    let handler = ScriptedHandler::that_applies();
    let (slow, status) = (Slow(handler.clone()), ConnectionStatus::new("test"));
    let consumer = Consumer::new(vhost.endpoint(), QUEUE, status);
    let _consumer = Running::start(|stop| consumer.run(slow, ScriptedStore::that_saves(), stop));
    handler.has_applied(&ids).await?;
    assert_eq!(handler.applied(), ids);
    assert!(vhost.is_empty(&topology::dead_letter_queue(QUEUE)).await?);
    Ok(())
}

/// A memory alarm keeps the broker from taking messages. Consumers have to go on: they are what frees memory.
#[tokio::test]
async fn alarm_of_the_broker_stops_no_consumer_that_has_to_set_a_message_aside() -> anyhow::Result<()> {
    let rabbitmq = Rabbitmq::private().await?;
    let vhost = Vhost::at(rabbitmq.url()).await?;
    vhost.put(QUEUE, "poison", b"not json").await?;
    let mut ids = vec![];
    for _ in 0..50 {
        let event = order_created();
        ids.push(event.event_id);
        vhost.put_event(QUEUE, &event).await?;
    }
    rabbitmq.set_memory_limit("1").await?;
    let handler = ScriptedHandler::that_applies();
    let _consumer = consume(&vhost, &handler);
    handler.has_applied(&ids).await?;
    assert_eq!(handler.applied(), ids, "an event was applied twice");
    assert_eq!(handler.letters.letters()[0].reason, "malformed");
    Ok(())
}

/// The broker is fine and messages wait, but one group takes for ever.
#[tokio::test]
async fn health_shows_a_consumer_that_makes_no_progress() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let event = order_created();
    vhost.put_event(QUEUE, &event).await?;
    let (stuck, status) = (Arc::new(AtomicBool::new(true)), ConnectionStatus::new("test"));
    let is_stuck = stuck.clone();
    let handler = ScriptedHandler::new(move |_, _| {
        if is_stuck.load(Ordering::SeqCst) { Err(Failure::TooSlow("a lock".into())) } else { Ok(()) }
    });
    let consumer = Consumer::new(vhost.endpoint(), QUEUE, status.clone());
    let running = handler.clone();
    let _consumer = Running::start(|stop| consumer.run(running, ScriptedStore::that_saves(), stop));
    eventually("health to say that nothing moves", DEADLINE, async || {
        Ok(status.state().is_err_and(|reason| reason.starts_with("no progress")).then_some(()))
    })
    .await?;
    stuck.store(false, Ordering::SeqCst);
    handler.has_applied(&[event.event_id]).await?;
    eventually("health to be good", DEADLINE, async || Ok(status.state().is_ok().then_some(()))).await
}

/// RabbitMQ reports a queue whose leader is silent as empty, and without consumers. Orders are cancelled when a queue is empty.
#[tokio::test]
async fn queue_with_a_silent_leader_does_not_count_as_empty() -> anyhow::Result<()> {
    let broker = Rabbitmq::private().await?;
    let vhost = Vhost::at(broker.url()).await?;
    let status = ConnectionStatus::new("test");
    let consumer = Consumer::new(vhost.endpoint(), QUEUE, status.clone());
    let handler = ScriptedHandler::that_applies();
    let _running = Running::start(|stop| consumer.run(handler.clone(), handler.letters.clone(), stop));
    vhost.put_event(QUEUE, &order_created()).await?;
    eventually("an empty queue to be found", DEADLINE, async || Ok(status.caught_up().then_some(()))).await?;
    broker.suspend_queue(QUEUE, true).await?;
    eventually("it to be unknown", DEADLINE, async || Ok((!status.caught_up()).then_some(()))).await?;
    broker.suspend_queue(QUEUE, false).await?;
    eventually("it to be empty again", DEADLINE, async || Ok(status.caught_up().then_some(()))).await
}

/// A client of someone else is the active consumer and holds all messages, so that none waits in the queue. Orders are
/// cancelled when a queue is empty.
#[tokio::test]
async fn queue_whose_messages_another_client_holds_does_not_count_as_empty() -> anyhow::Result<()> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let vhost = Vhost::new().await?;
    let held = vhost.open_channel().await?;
    let options = BasicConsumeOptions::default();
    let _other = held.basic_consume(QUEUE.into(), "".into(), options, Default::default()).await?;
    let (handler, status) = (ScriptedHandler::that_applies(), ConnectionStatus::new("test"));
    let consumer = Consumer::new(vhost.endpoint(), QUEUE, status.clone());
    let _running = Running::start(|stop| consumer.run(handler.clone(), handler.letters.clone(), stop));
    let event = order_created();
    vhost.put_event(QUEUE, &event).await?;
    eventually("the consumer to check its queue", DEADLINE, async || {
        let metrics = recorder.handle().render();
        let checked = metrics.contains("broker_consumer_active{queue=\"inventory.events\"} 0")
            && metrics.contains("broker_queue_ready{queue=\"inventory.events\"} 0");
        Ok(checked.then_some(()))
    })
    .await?;
    assert!(!status.caught_up(), "the queue counts as empty");
    held.close(200, "done".into()).await?;
    handler.has_applied(&[event.event_id]).await?;
    eventually("the queue to be empty", DEADLINE, async || Ok(status.caught_up().then_some(()))).await
}

/// Two hundred large messages in one group would be held several times over.
#[tokio::test]
async fn group_of_large_messages_is_limited_by_their_size() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let blocked = Arc::new(AtomicBool::new(true));
    let is_blocked = blocked.clone();
    let handler =
        ScriptedHandler::new(
            move |_, _| {
                if is_blocked.load(Ordering::SeqCst) { Err(unavailable()) } else { Ok(()) }
            },
        );
    let _consumer = consume(&vhost, &handler);
    let mut ids = vec![];
    for _ in 0..30 {
        let mut event = order_created();
        event.payload.push_str(&" ".repeat(1_000_000));
        ids.push(event.event_id);
        vhost.put_event(QUEUE, &event).await?;
    }
    eventually("all to be delivered", DEADLINE, async || Ok(vhost.is_empty(QUEUE).await?.then_some(())))
        .await?;
    blocked.store(false, Ordering::SeqCst);
    handler.has_applied(&ids).await?;
    assert_eq!(handler.applied(), ids);
    let largest = handler.record.lock().unwrap().largest_group;
    assert!(largest <= 9, "{largest} messages of one megabyte in a group");
    Ok(())
}
