//! How messages that cannot be applied, and the events behind them, are saved as dead letters.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use messaging::Failure;
use metrics_exporter_prometheus::PrometheusBuilder;
use rabbitmq::queues;

use crate::{
    scripted::{ScriptedHandler, ScriptedStore, consume, ids, unavailable},
    support::{QUEUE, Vhost, until},
};

/// As large as the broker takes.
const LARGEST: usize = 128 * 1024;

/// Each event of a group that is behind a dead letter is saved, in the order of the group; the others are applied.
#[tokio::test]
async fn events_behind_a_dead_letter_are_set_aside_in_order_and_the_others_are_applied() -> anyhow::Result<()>
{
    let vhost = Vhost::new().await?;
    // About twenty acknowledgements. Of more than 32 in a row RabbitMQ keeps some back for a moment, and forgets them
    // with a connection that is closed then: the messages come again, which is harmless, and not what is tested here.
    let mut others = vhost.put_events(30).await?;
    let behind: Vec<_> = others.iter().copied().skip(1).step_by(3).collect();
    others.retain(|event| !behind.contains(event));
    let is_behind: HashSet<_> = behind.iter().copied().collect();
    let handler = ScriptedHandler::new(move |event, _| {
        if is_behind.contains(&event.id) { Err(Failure::Behind(is_behind.clone())) } else { Ok(()) }
    });
    let consumer = consume(&vhost, &handler);
    let letters = handler.letters.saved(behind.len()).await?;
    assert_eq!(ids(&letters), behind.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert!(letters.iter().all(|letter| letter.reason == "behind"), "{letters:?}");
    handler.has_applied_exactly(&others).await?;
    // Two events are between two that are behind. Alone, each would be its own transaction.
    assert_eq!(handler.record.lock().unwrap().largest_applied, 2);
    consumer.stop().await?;
    assert_eq!(vhost.count_without_consumers(QUEUE).await?, 0, "a message was not acknowledged");
    Ok(())
}

#[tokio::test]
async fn undecodable_messages_become_dead_letters_and_later_messages_go_on() -> anyhow::Result<()> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let vhost = Vhost::new().await?;
    let (handler, huge) = (ScriptedHandler::that_applies(), vec![b'['; LARGEST]);
    let before = vhost.put_event().await?;
    vhost.put(QUEUE, "huge", &huge).await?;
    let after = vhost.put_event().await?;
    // The acknowledgement of a later message would hide that this one is not acknowledged.
    vhost.put(QUEUE, "poison", b"{\"this is\": not json").await?;
    let consumer = consume(&vhost, &handler);
    let letters = handler.letters.saved(2).await?;
    assert_eq!(handler.applied(), [before, after]);
    assert_eq!(ids(&letters), ["huge", "poison"]);
    assert!(letters[0].body == huge && letters[1].body == b"{\"this is\": not json", "the original bytes");
    for dead in &letters {
        assert_eq!((dead.queue, dead.reason.as_str()), (QUEUE, "malformed"));
        assert!(dead.detail.starts_with("malformed: "), "{}", dead.detail);
        assert_eq!(dead.routing_key, QUEUE, "it was published straight into the queue");
    }
    consumer.stop().await?;
    assert_eq!(vhost.count_without_consumers(QUEUE).await?, 0, "a message was not acknowledged");
    assert!(vhost.is_empty(&queues::dead_letter_queue(QUEUE)).await?);
    let page = recorder.handle().render();
    assert!(page.contains("inbox_dead_lettered_total{reason=\"malformed\"} 2"), "{page}");
    Ok(())
}

/// Between the handler's answer and the saving, an operator may resolve the dead letter that the event waited for.
#[tokio::test]
async fn event_that_is_no_longer_behind_a_dead_letter_is_applied() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let event = vhost.put_event().await?;
    let handler = ScriptedHandler::new(|event, tries| {
        if tries == 1 { Err(Failure::Behind(HashSet::from([event.id]))) } else { Ok(()) }
    })
    .with(&ScriptedStore::new(|_, _| Ok(false)));
    let _consumer = consume(&vhost, &handler);
    handler.has_applied(&[event]).await?;
    assert_eq!(handler.letters.letters(), []);
    Ok(())
}

/// A message is settled before a later one of the same group is: otherwise a later event of its aggregate could be applied
/// first, or wait behind it forever. The store is unavailable at first, and the consumer waits for it.
#[tokio::test]
async fn messages_are_applied_and_set_aside_in_the_order_of_their_queue() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let steps = Arc::new(Mutex::new(vec![]));
    let (applied, saved) = (steps.clone(), steps.clone());
    let store = ScriptedStore::new(move |letter, earlier_calls| {
        if earlier_calls < 4 {
            return Err(unavailable());
        }
        saved.lock().unwrap().push(letter.message_id.clone().unwrap_or_default());
        Ok(true)
    });
    let handler = ScriptedHandler::new(move |event, _| {
        applied.lock().unwrap().push(event.id.to_string());
        Ok(())
    })
    .with(&store);
    let mut expected = vec![];
    for number in 0..30 {
        if number % 3 == 1 {
            expected.push(format!("poison-{number}"));
            vhost.put(QUEUE, &format!("poison-{number}"), b"not json").await?;
        } else {
            expected.push(vhost.put_event().await?.to_string());
        }
    }
    let _consumer = consume(&vhost, &handler);
    until("all messages to be settled", || steps.lock().unwrap().len() >= expected.len()).await?;
    assert_eq!(*steps.lock().unwrap(), expected);
    assert!(vhost.is_empty(&queues::dead_letter_queue(QUEUE)).await?);
    Ok(())
}

/// Neither lost nor in the way of the others: the broker keeps it, and its collector tries again.
#[tokio::test]
async fn dead_letter_that_its_consumer_cannot_save_goes_to_the_dead_letter_queue() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    vhost.put(QUEUE, "poison", b"not json").await?;
    let event = vhost.put_event().await?;
    let store = ScriptedStore::new(|_, _| Err(Failure::Permanent("the test refuses it".into())));
    let handler = ScriptedHandler::that_applies().with(&store);
    let _consumer = consume(&vhost, &handler);
    handler.has_applied(&[event]).await?;
    assert_eq!(vhost.take(&queues::dead_letter_queue(QUEUE)).await?.data, b"not json");
    Ok(())
}
