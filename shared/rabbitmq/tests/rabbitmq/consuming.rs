use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use lapin::{BasicProperties, options::QueueDeleteOptions};
use messaging::Failure;
use testbed::eventually;

use crate::{
    collecting::odd_headers,
    scripted::{ScriptedHandler, consume, ids, unavailable},
    support::{DEADLINE, QUEUE, Switch, Vhost, order_created},
};

#[tokio::test]
async fn waiting_messages_are_applied_in_order_and_in_groups() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let ids = vhost.put_events(200).await?;
    // The first message is applied alone, as after every start. The next group is held until the broker has delivered
    // everything, so that messages have arrived for the group after it.
    let (first, released) = (ids[0], Switch::default());
    let release = released.clone();
    let handler =
        ScriptedHandler::new(
            move |event, _| {
                if event.id == first || released.is_on() { Ok(()) } else { Err(unavailable()) }
            },
        );
    let _consumer = consume(&vhost, &handler);
    vhost.until_delivered().await?;
    handler.has_tried(ids[1], 5).await?;
    release.set(true);
    handler.has_applied_exactly(&ids).await?;
    assert_eq!(handler.letters.letters(), [], "a temporary failure sets nothing aside");
    let largest = handler.record.lock().unwrap().largest_group;
    assert!(largest > 1, "each of 200 waiting messages had its own transaction");
    Ok(())
}

#[tokio::test]
async fn event_that_fails_for_good_is_set_aside_and_its_group_is_applied() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let mut events = vhost.put_events(50).await?;
    let bad = events.remove(20);
    let handler = ScriptedHandler::new(move |event, _| {
        if event.id == bad { Err(Failure::Permanent("there is no such product".into())) } else { Ok(()) }
    });
    let _consumer = consume(&vhost, &handler);
    handler.has_applied_exactly(&events).await?;
    let dead = &handler.letters.saved(1).await?[0];
    assert_eq!((&dead.message_id, dead.reason.as_str()), (&Some(bad.to_string()), "permanent"));
    assert!(dead.detail.contains("there is no such product"));
    Ok(())
}

#[tokio::test]
async fn panicking_handler_is_tried_a_few_times_and_the_consumer_goes_on() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let ids = vhost.put_events(2).await?;
    let (poison, good) = (ids[0], ids[1]);
    let handler = ScriptedHandler::new(move |event, _| {
        assert_ne!(event.id, poison, "the test makes the handler panic");
        Ok(())
    });
    let _consumer = consume(&vhost, &handler);
    handler.has_applied(&[good]).await?;
    assert_eq!(handler.letters.saved(1).await?[0].reason, "unexpected");
    assert!((5..=6).contains(&handler.tries(poison)), "{} tries", handler.tries(poison));
    Ok(())
}

/// As while the server raises an error that no table knows: set aside one by one, the whole queue would become dead letters. It
/// takes longer than the consumer keeps its messages, and than the broker delivers them without suspicion.
#[tokio::test]
async fn different_events_that_fail_alike_for_an_unknown_reason_wait() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let (delivered, repaired) = (Switch::default(), Switch::default());
    let (is_delivered, is_repaired) = (delivered.clone(), repaired.clone());
    let created = order_created();
    let (first, body) = (created.event_id, created.payload.as_bytes());
    vhost.put(QUEUE, &first.to_string(), body).await?;
    let handler = ScriptedHandler::new(move |event, _| match event.id == first {
        true if is_delivered.is_on() => Ok(()),
        true => Err(unavailable()),
        false if is_repaired.is_on() => Ok(()),
        false => Err(Failure::Unexpected(format!("function error for {}", event.id).into())),
    });
    let consumer = consume(&vhost, &handler);
    // It is applied alone, and held until all others have arrived.
    handler.has_tried(first, 0).await?;
    let events = vhost.put_events(5).await?;
    // A copy. That it can be applied shows nothing about the others.
    vhost.put(QUEUE, &first.to_string(), body).await?;
    vhost.until_delivered().await?;
    handler.has_tried(first, handler.tries(first) + 3).await?;
    delivered.set(true);
    // In the third session each is suspected to crash its consumer, and is applied alone.
    for _ in 0..3 {
        consumer.until_failing("different events fail alike").await?;
        consumer.until_working().await?;
    }
    repaired.set(true);
    handler.has_applied(&events).await?;
    assert_eq!(handler.letters.letters(), []);
    Ok(())
}

/// One event at a time arrives: the first is set aside, since nothing shows that it is not to blame, and the next one waits.
#[tokio::test]
async fn event_that_fails_as_the_one_before_it_waits_until_another_can_be_applied() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let first = vhost.put_event().await?;
    let good = Arc::new(Mutex::new(None));
    let is_good = good.clone();
    let handler = ScriptedHandler::new(move |event, _| match *is_good.lock().unwrap() == Some(event.id) {
        true => Ok(()),
        false => Err(Failure::Unexpected("the test makes it fail".into())),
    });
    let _consumer = consume(&vhost, &handler);
    handler.letters.saved(1).await?;
    let second = vhost.put_event().await?;
    handler.has_tried(second, 6).await?;
    assert_eq!(handler.letters.letters().len(), 1, "the second one waits");
    // The broker delivers both together a quarter of a minute later.
    *good.lock().unwrap() = Some(vhost.put_event().await?);
    let letters = handler.letters.saved(2).await?;
    assert_eq!(ids(&letters), [first.to_string(), second.to_string()]);
    Ok(())
}

#[tokio::test]
async fn event_that_succeeds_after_a_few_tries_is_not_set_aside() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let event = vhost.put_event().await?;
    let handler = ScriptedHandler::new(|_, tries| {
        if tries < 4 { Err(Failure::Unexpected("the test makes it fail".into())) } else { Ok(()) }
    });
    let (_consumer, began) = (consume(&vhost, &handler), Instant::now());
    handler.has_applied(&[event]).await?;
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
    let before = vhost.put_event().await?;
    handler.has_applied(&[before]).await?;
    vhost.channel.queue_delete(QUEUE.into(), QueueDeleteOptions::default()).await?;
    eventually("the queue to be consumed again", DEADLINE, async || {
        // The broker returns a message to a queue that does not exist, so the next try publishes another one.
        vhost.put_event().await?;
        Ok((handler.applied().len() > 1).then_some(()))
    })
    .await
}

/// lapin announces once that a subscription has ended. A consumer that hears of it behind deliveries that it has not read yet must
/// not read over it.
#[tokio::test]
async fn queue_deleted_behind_buffered_deliveries_is_consumed_again() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let released = Switch::default();
    let handler = ScriptedHandler::that_waits_for(&released);
    let _consumer = consume(&vhost, &handler);
    let first = vhost.put_event().await?;
    handler.has_tried(first, 0).await?;
    vhost.put_events(4).await?;
    vhost.until_delivered().await?;
    vhost.open_channel().await?.queue_delete(QUEUE.into(), QueueDeleteOptions::default()).await?;
    // The end of the subscription arrives while the consumer still makes attempts at its first group.
    handler.has_tried(first, handler.tries(first) + 2).await?;
    vhost.endpoint().check().await?;
    let after = vhost.put_event().await?;
    released.set(true);
    handler.has_applied(&[after]).await
}

#[tokio::test]
async fn headers_of_other_types_and_forged_ones_stop_no_event() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let mut ids = vec![];
    for headers in odd_headers() {
        let event = order_created();
        ids.push(event.event_id);
        let id = event.event_id.to_string().into();
        let properties = BasicProperties::default().with_message_id(id).with_headers(headers);
        vhost.put_with(QUEUE, properties, event.payload.as_bytes()).await?;
    }
    ids.push(vhost.put_event().await?);
    let handler = ScriptedHandler::that_applies();
    let _consumer = consume(&vhost, &handler);
    // One claims to have been delivered very often. How often is no reason to set a message aside.
    handler.has_applied(&ids).await?;
    assert_eq!((handler.applied().len(), handler.letters.letters()), (ids.len(), vec![]));
    Ok(())
}
