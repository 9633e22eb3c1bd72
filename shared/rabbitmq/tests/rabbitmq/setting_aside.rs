//! How messages that cannot be applied, and the events behind them, are saved as dead letters.

use std::{collections::HashSet, sync::Mutex};

use messaging::Failure;
use metrics_exporter_prometheus::PrometheusBuilder;
use rabbitmq::{ConnectionStatus, Consumer, topology};
use testbed::eventually;

use crate::{
    scripted_handler::{QUEUE, ScriptedHandler, consume},
    scripted_store::ScriptedStore,
    support::{DEADLINE, Running, Vhost, order_created},
};

fn consume_with(vhost: &Vhost, handler: &ScriptedHandler, store: &ScriptedStore) -> Running {
    let consumer = Consumer::new(vhost.endpoint(), QUEUE, ConnectionStatus::new("test"));
    Running::start(|stop| consumer.run(handler.clone(), store.clone(), stop))
}

/// Each event of a group that is behind a dead letter is saved, in the order of the group; the others are applied.
#[tokio::test]
async fn events_behind_a_dead_letter_are_set_aside_in_order_and_the_others_are_applied() -> anyhow::Result<()>
{
    let vhost = Vhost::new().await?;
    // About twenty acknowledgements. Of more than 32 in a row RabbitMQ keeps some back for a moment, and forgets them with a
    // connection that is closed then: the messages come again, which is harmless, and not what is tested here.
    let events: Vec<_> = (0..30).map(|_| order_created()).collect();
    let behind: Vec<_> = events.iter().map(|event| event.event_id).skip(1).step_by(3).collect();
    let is_behind: HashSet<_> = behind.iter().copied().collect();
    let handler = ScriptedHandler::new({
        let is_behind = is_behind.clone();
        move |event, _| {
            if is_behind.contains(&event.id) { Err(Failure::Behind(is_behind.clone())) } else { Ok(()) }
        }
    });
    for event in &events {
        vhost.put_event(QUEUE, event).await?;
    }
    let consumer = consume(&vhost, &handler);
    let letters = handler.letters.saved(behind.len()).await?;
    let ids: Vec<_> = letters.iter().filter_map(|letter| letter.message_id.clone()).collect();
    assert_eq!(ids, behind.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert!(letters.iter().all(|letter| letter.reason == "behind"), "{letters:?}");
    let others: Vec<_> =
        events.iter().map(|event| event.event_id).filter(|id| !is_behind.contains(id)).collect();
    handler.has_applied(&others).await?;
    assert_eq!(handler.applied(), others);
    // Two events are between two that are behind. Alone, each would be a transaction of its own.
    assert_eq!(handler.record.lock().unwrap().largest_applied, 2);
    consumer.stop().await?;
    assert_eq!(vhost.count_without_consumers(QUEUE).await?, 0, "a message was not acknowledged");
    Ok(())
}

/// Otherwise the next connection would receive it again. The acknowledgement of a later message would hide that.
#[tokio::test]
async fn message_that_was_set_aside_is_acknowledged_and_counted() -> anyhow::Result<()> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let vhost = Vhost::new().await?;
    vhost.put(QUEUE, "poison", b"not json").await?;
    let handler = ScriptedHandler::that_applies();
    let consumer = consume(&vhost, &handler);
    handler.letters.saved(1).await?;
    consumer.stop().await?;
    assert_eq!(vhost.count_without_consumers(QUEUE).await?, 0);
    let page = recorder.handle().render();
    assert!(page.contains("inbox_dead_lettered_total{reason=\"malformed\"} 1"), "{page}");
    Ok(())
}

/// Between the handler's answer and the saving, an operator may resolve the dead letter that the event waited for.
#[tokio::test]
async fn event_that_is_no_longer_behind_a_dead_letter_is_applied() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let event = order_created();
    vhost.put_event(QUEUE, &event).await?;
    let handler = ScriptedHandler::new(|event, tries| {
        if tries == 1 { Err(Failure::Behind(HashSet::from([event.id]))) } else { Ok(()) }
    });
    let store = ScriptedStore::new(|_, _| Ok(false));
    let _consumer = consume_with(&vhost, &handler, &store);
    handler.has_applied(&[event.event_id]).await?;
    assert_eq!(store.letters(), []);
    Ok(())
}

/// A message is settled before a later one of the same group is: otherwise a later event of its aggregate could be applied
/// first, or wait behind it for ever.
#[tokio::test]
async fn messages_are_applied_and_set_aside_in_the_order_of_their_queue() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let steps = std::sync::Arc::new(Mutex::new(vec![]));
    let (applied, saved) = (steps.clone(), steps.clone());
    let handler = ScriptedHandler::new(move |event, _| {
        applied.lock().unwrap().push(event.id.to_string());
        Ok(())
    });
    let store = ScriptedStore::new(move |letter, _| {
        saved.lock().unwrap().push(letter.message_id.clone().unwrap_or_default());
        Ok(true)
    });
    let mut expected = vec![];
    for number in 0..30 {
        if number % 3 == 1 {
            expected.push(format!("poison-{number}"));
            vhost.put(QUEUE, &format!("poison-{number}"), b"not json").await?;
        } else {
            let event = order_created();
            expected.push(event.event_id.to_string());
            vhost.put_event(QUEUE, &event).await?;
        }
    }
    let _consumer = consume_with(&vhost, &handler, &store);
    eventually("all messages to be settled", DEADLINE, async || {
        Ok((steps.lock().unwrap().len() >= expected.len()).then_some(()))
    })
    .await?;
    assert_eq!(*steps.lock().unwrap(), expected);
    Ok(())
}

#[tokio::test]
async fn consumer_waits_for_a_store_that_is_unavailable_and_keeps_the_order() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    vhost.put(QUEUE, "poison", b"not json").await?;
    let event = order_created();
    vhost.put_event(QUEUE, &event).await?;
    let store = ScriptedStore::new(|_, earlier_calls| {
        if earlier_calls < 4 {
            Err(Failure::Temporary("the database is unavailable".into()))
        } else {
            Ok(true)
        }
    });
    let letters = store.clone();
    let handler = ScriptedHandler::new(move |_, _| {
        assert_eq!(letters.letters().len(), 1, "a later message was applied first");
        Ok(())
    });
    let _consumer = consume_with(&vhost, &handler, &store);
    handler.has_applied(&[event.event_id]).await?;
    assert_eq!(handler.tries(event.event_id), 1);
    assert!(vhost.is_empty(&topology::dead_letter_queue(QUEUE)).await?);
    Ok(())
}

/// Neither lost nor in the way of the others: the broker keeps it, and its collector tries again.
#[tokio::test]
async fn dead_letter_that_its_consumer_cannot_save_goes_to_the_dead_letter_queue() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    vhost.put(QUEUE, "poison", b"not json").await?;
    let event = order_created();
    vhost.put_event(QUEUE, &event).await?;
    let store = ScriptedStore::new(|_, _| Err(Failure::Permanent("the test refuses it".into())));
    let handler = ScriptedHandler::that_applies();
    let _consumer = consume_with(&vhost, &handler, &store);
    handler.has_applied(&[event.event_id]).await?;
    let dead = vhost.take(&topology::dead_letter_queue(QUEUE)).await?;
    assert_eq!(dead.data, b"not json");
    Ok(())
}
