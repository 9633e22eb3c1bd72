use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use lapin::options::QueueDeleteOptions;
use messaging::Failure;
use rabbitmq::topology;
use testbed::eventually;

use crate::{
    scripted_handler::{QUEUE, ScriptedHandler, consume, unavailable},
    support::{DEADLINE, Vhost, order_created},
};

#[tokio::test]
async fn waiting_messages_are_applied_in_order_and_in_groups() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let mut ids = vec![];
    for _ in 0..200 {
        let event = order_created();
        ids.push(event.event_id);
        vhost.put_event(QUEUE, &event).await?;
    }
    // The first message is applied alone, as after every start. The next group is held until the broker has delivered
    // everything, so that messages have arrived for the group after it.
    let (first, release) = (ids[0], Arc::new(AtomicBool::new(false)));
    let handler = ScriptedHandler::new({
        let release = release.clone();
        move |event, _| {
            if event.id == first || release.load(Ordering::Relaxed) { Ok(()) } else { Err(unavailable()) }
        }
    });
    let _consumer = consume(&vhost, &handler);
    eventually("all messages to be delivered", DEADLINE, async || {
        Ok(vhost.is_empty(QUEUE).await?.then_some(()))
    })
    .await?;
    release.store(true, Ordering::Relaxed);
    handler.has_applied(&ids).await?;
    assert_eq!(handler.applied(), ids);
    let largest = handler.record.lock().unwrap().largest_group;
    assert!(largest > 1, "each of 200 waiting messages had a transaction of its own");
    Ok(())
}

#[tokio::test]
async fn undecodable_message_becomes_a_dead_letter_and_later_messages_go_on() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let (before, after) = (order_created(), order_created());
    vhost.put_event(QUEUE, &before).await?;
    vhost.put(QUEUE, "poison", b"{\"this is\": not json").await?;
    vhost.put_event(QUEUE, &after).await?;
    let handler = ScriptedHandler::that_applies();
    let _consumer = consume(&vhost, &handler);
    handler.has_applied(&[before.event_id, after.event_id]).await?;
    let dead = &handler.letters.saved(1).await?[0];
    assert_eq!((dead.queue, dead.message_id.as_deref()), (QUEUE, Some("poison")));
    assert_eq!(dead.body, b"{\"this is\": not json", "the original bytes");
    assert_eq!(dead.reason, "malformed");
    assert!(dead.detail.starts_with("malformed: "), "{dead:?}");
    assert_eq!(dead.routing_key, QUEUE, "it was published straight into the queue");
    assert!(vhost.is_empty(&topology::dead_letter_queue(QUEUE)).await?);
    Ok(())
}

#[tokio::test]
async fn event_that_fails_for_good_is_set_aside_and_its_group_is_applied() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let events: Vec<_> = (0..50).map(|_| order_created()).collect();
    for event in &events {
        vhost.put_event(QUEUE, event).await?;
    }
    let bad = events[20].event_id;
    let handler = ScriptedHandler::new(move |event, _| {
        if event.id == bad { Err(Failure::Permanent("there is no such product".into())) } else { Ok(()) }
    });
    let _consumer = consume(&vhost, &handler);
    let good: Vec<_> = events.iter().map(|event| event.event_id).filter(|id| *id != bad).collect();
    handler.has_applied(&good).await?;
    let dead = &handler.letters.saved(1).await?[0];
    assert_eq!(dead.message_id, Some(bad.to_string()));
    assert_eq!(dead.reason, "permanent");
    assert!(dead.detail.contains("there is no such product"));
    assert_eq!(handler.applied().len(), good.len(), "an event was applied twice");
    Ok(())
}

#[tokio::test]
async fn temporary_failures_set_nothing_aside_and_keep_the_order() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let events: Vec<_> = (0..5).map(|_| order_created()).collect();
    let ids: Vec<_> = events.iter().map(|event| event.event_id).collect();
    let first = ids[0];
    let handler =
        ScriptedHandler::new(
            move |event, tries| {
                if event.id == first && tries <= 5 { Err(unavailable()) } else { Ok(()) }
            },
        );
    for event in &events {
        vhost.put_event(QUEUE, event).await?;
    }
    let _consumer = consume(&vhost, &handler);
    handler.has_applied(&ids).await?;
    assert_eq!(handler.applied(), ids);
    assert_eq!(handler.letters.letters(), []);
    Ok(())
}

#[tokio::test]
async fn panicking_handler_is_tried_a_few_times_and_the_consumer_goes_on() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let (bad, good) = (order_created(), order_created());
    let poison = bad.event_id;
    let handler = ScriptedHandler::new(move |event, _| {
        assert_ne!(event.id, poison, "the test makes the handler panic");
        Ok(())
    });
    let _consumer = consume(&vhost, &handler);
    vhost.put_event(QUEUE, &bad).await?;
    vhost.put_event(QUEUE, &good).await?;
    handler.has_applied(&[good.event_id]).await?;
    assert_eq!(handler.letters.saved(1).await?[0].reason, "unexpected");
    assert!((5..=6).contains(&handler.tries(poison)), "{} tries", handler.tries(poison));
    Ok(())
}

#[tokio::test]
async fn event_that_succeeds_after_a_few_tries_is_not_set_aside() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let event = order_created();
    vhost.put_event(QUEUE, &event).await?;
    let handler = ScriptedHandler::new(|_, tries| {
        if tries < 4 { Err(Failure::Unexpected("the test makes it fail".into())) } else { Ok(()) }
    });
    let (_consumer, began) = (consume(&vhost, &handler), Instant::now());
    handler.has_applied(&[event.event_id]).await?;
    assert_eq!(handler.letters.letters(), []);
    // 100, 200 and 400 ms.
    assert!(began.elapsed() >= Duration::from_millis(700), "tried again after {:?}", began.elapsed());
    Ok(())
}

#[tokio::test]
async fn deleted_queue_is_declared_and_consumed_again() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let handler = ScriptedHandler::that_applies();
    let _consumer = consume(&vhost, &handler);
    let before = order_created();
    vhost.put_event(QUEUE, &before).await?;
    handler.has_applied(&[before.event_id]).await?;
    vhost.channel.queue_delete(QUEUE.into(), QueueDeleteOptions::default()).await?;
    let after = order_created();
    eventually("the queue to be consumed again", DEADLINE, async || {
        // The broker returns a message to a queue that does not exist, so the next try publishes it again.
        vhost.put_event(QUEUE, &after).await?;
        Ok(handler.applied().contains(&after.event_id).then_some(()))
    })
    .await
}

#[tokio::test]
async fn message_not_applied_at_the_stop_is_delivered_to_the_next_consumer() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let event = order_created();
    vhost.put_event(QUEUE, &event).await?;
    let failing = ScriptedHandler::new(|_, _| Err(unavailable()));
    let consumer = consume(&vhost, &failing);
    eventually("a first try", DEADLINE, async || Ok((failing.tries(event.event_id) > 0).then_some(())))
        .await?;
    consumer.stop().await?;
    let next = ScriptedHandler::that_applies();
    let _consumer = consume(&vhost, &next);
    next.has_applied(&[event.event_id]).await
}

/// lapin announces once that a subscription has ended. A consumer that is told behind deliveries that it has not read yet must
/// not read over it.
#[tokio::test]
async fn queue_deleted_behind_buffered_deliveries_is_consumed_again() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let events: Vec<_> = (0..6).map(|_| order_created()).collect();
    let (first, after) = (events[0].event_id, &events[5]);
    let release = Arc::new(AtomicBool::new(false));
    let handler = ScriptedHandler::new({
        let release = release.clone();
        move |_, _| if release.load(Ordering::SeqCst) { Ok(()) } else { Err(unavailable()) }
    });
    let _consumer = consume(&vhost, &handler);
    vhost.put_event(QUEUE, &events[0]).await?;
    eventually("the first group to be held", DEADLINE, async || Ok((handler.tries(first) > 0).then_some(())))
        .await?;
    for event in &events[1..5] {
        vhost.put_event(QUEUE, event).await?;
    }
    eventually("the others to be buffered", DEADLINE, async || {
        Ok(vhost.is_empty(QUEUE).await?.then_some(()))
    })
    .await?;
    vhost.open_channel().await?.queue_delete(QUEUE.into(), QueueDeleteOptions::default()).await?;
    // The end of the subscription arrives while the consumer still makes attempts at its first group.
    let before = handler.tries(first);
    eventually("more attempts", DEADLINE, async || Ok((handler.tries(first) > before + 2).then_some(())))
        .await?;
    vhost.endpoint().check().await?;
    vhost.put_event(QUEUE, after).await?;
    release.store(true, Ordering::SeqCst);
    handler.has_applied(&[after.event_id]).await
}
