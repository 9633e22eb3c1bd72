use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use broker::{Consumer, ConsumerOptions, Link, topology};
use events::{
    Event,
    transport::{Applied, Failure, Handler},
};
use lapin::{BasicProperties, message::Delivery, options::QueueDeleteOptions, types::ShortString};
use testbed::eventually;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use crate::support::{Host, order_created};

const QUEUE: &str = topology::INVENTORY;
const PATIENCE: Duration = Duration::from_secs(20);

type Script = dyn Fn(&Event, usize) -> Result<(), Failure> + Send + Sync;

/// Applies an event, or fails over it, as the test says: it gets the event and which try this is, from 1.
#[derive(Clone)]
struct ScriptedHandler {
    script: Arc<Script>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    tries: HashMap<Uuid, usize>,
    applied: Vec<Uuid>,
    largest_group: usize,
}

impl ScriptedHandler {
    fn that(script: impl Fn(&Event, usize) -> Result<(), Failure> + Send + Sync + 'static) -> Self {
        Self { script: Arc::new(script), seen: Arc::default() }
    }

    fn applied(&self) -> Vec<Uuid> {
        self.seen.lock().unwrap().applied.clone()
    }

    fn tries(&self, id: Uuid) -> usize {
        self.seen.lock().unwrap().tries.get(&id).copied().unwrap_or(0)
    }

    async fn has_applied(&self, events: &[Uuid]) -> anyhow::Result<()> {
        eventually("all events to be applied", PATIENCE, async || {
            let applied = self.applied();
            Ok(events.iter().all(|event| applied.contains(event)).then_some(()))
        })
        .await
    }
}

impl Handler for ScriptedHandler {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        // All or nothing, as a transaction would be.
        for event in group {
            let tries = {
                let mut seen = self.seen.lock().unwrap();
                seen.largest_group = seen.largest_group.max(group.len());
                let tries = seen.tries.entry(event.id).or_default();
                *tries += 1;
                *tries
            };
            (self.script)(event, tries)?;
        }
        self.seen.lock().unwrap().applied.extend(group.iter().map(|event| event.id));
        Ok(Applied { first: group.len(), duplicates: 0 })
    }
}

fn consume(host: &Host, handler: &ScriptedHandler) -> DropGuard {
    let stop = CancellationToken::new();
    let consumer = Consumer::new(host.endpoint(), QUEUE, ConsumerOptions::default(), Link::new("test"));
    tokio::spawn(consumer.run(handler.clone(), stop.clone()));
    stop.drop_guard()
}

fn header(message: &Delivery, key: &str) -> String {
    let headers = message.properties.headers().as_ref().unwrap().inner();
    headers.get(key).and_then(|value| value.as_long_string()).map(ToString::to_string).unwrap_or_default()
}

#[tokio::test]
async fn what_waits_in_the_queue_is_handled_in_order_and_in_groups() -> anyhow::Result<()> {
    let host = Host::new().await?;
    let mut ids = vec![];
    for _ in 0..200 {
        let event = order_created();
        ids.push(event.event_id);
        host.put_event(QUEUE, &event).await?;
    }
    let handler = ScriptedHandler::that(|_, _| Ok(()));
    let _consumer = consume(&host, &handler);
    handler.has_applied(&ids).await?;
    assert_eq!(handler.applied(), ids);
    assert!(
        handler.seen.lock().unwrap().largest_group > 1,
        "one transaction for each of 200 waiting messages"
    );
    Ok(())
}

#[tokio::test]
async fn a_poison_message_goes_to_the_dead_letters_with_its_reason_and_the_next_ones_go_on()
-> anyhow::Result<()> {
    let host = Host::new().await?;
    let (before, after) = (order_created(), order_created());
    host.put_event(QUEUE, &before).await?;
    let properties = BasicProperties::default()
        .with_message_id("poison".into())
        .with_content_type("text/odd".into())
        .with_expiration("3600000".into());
    host.put_with(QUEUE, properties, b"{\"this is\": not json").await?;
    host.put_event(QUEUE, &after).await?;
    let handler = ScriptedHandler::that(|_, _| Ok(()));
    let _consumer = consume(&host, &handler);
    handler.has_applied(&[before.event_id, after.event_id]).await?;
    let dead = host.take(&topology::dead_letter_queue(QUEUE)).await?;
    let kept = &dead.properties;
    assert_eq!(kept.message_id().as_ref().map(ShortString::as_str), Some("poison"));
    assert_eq!(kept.content_type().as_ref().map(ShortString::as_str), Some("text/odd"));
    assert_eq!(kept.expiration(), &None, "it would be gone before anybody looks");
    assert_eq!(dead.data, b"{\"this is\": not json", "the original bytes");
    assert_eq!(header(&dead, "reason"), "malformed");
    assert!(!header(&dead, "detail").is_empty());
    assert!(host.is_empty(&topology::dead_letter_queue(QUEUE)).await?);
    Ok(())
}

#[tokio::test]
async fn one_event_that_can_never_be_applied_does_not_sink_its_group() -> anyhow::Result<()> {
    let host = Host::new().await?;
    let events: Vec<_> = (0..50).map(|_| order_created()).collect();
    for event in &events {
        host.put_event(QUEUE, event).await?;
    }
    let bad = events[20].event_id;
    let handler = ScriptedHandler::that(move |event, _| {
        if event.id == bad { Err(Failure::Permanent("there is no such product".into())) } else { Ok(()) }
    });
    let _consumer = consume(&host, &handler);
    let good: Vec<_> = events.iter().map(|event| event.event_id).filter(|id| *id != bad).collect();
    handler.has_applied(&good).await?;
    let dead = host.take(&topology::dead_letter_queue(QUEUE)).await?;
    assert_eq!(dead.properties.message_id().as_ref().unwrap().as_str(), bad.to_string());
    assert_eq!(header(&dead, "reason"), "permanent");
    assert!(header(&dead, "detail").contains("there is no such product"));
    assert_eq!(handler.applied().len(), good.len(), "an event was applied twice");
    Ok(())
}

#[tokio::test]
async fn while_the_trouble_is_temporary_nothing_is_set_aside_and_order_is_kept() -> anyhow::Result<()> {
    let host = Host::new().await?;
    let events: Vec<_> = (0..5).map(|_| order_created()).collect();
    let ids: Vec<_> = events.iter().map(|event| event.event_id).collect();
    let first = ids[0];
    let handler = ScriptedHandler::that(move |event, tries| {
        let away = event.id == first && tries <= 5;
        if away { Err(Failure::Temporary("the database is away".into())) } else { Ok(()) }
    });
    for event in &events {
        host.put_event(QUEUE, event).await?;
    }
    let _consumer = consume(&host, &handler);
    handler.has_applied(&ids).await?;
    assert_eq!(handler.applied(), ids);
    assert!(host.is_empty(&topology::dead_letter_queue(QUEUE)).await?);
    Ok(())
}

#[tokio::test]
async fn a_handler_that_panics_is_tried_a_few_times_and_the_consumer_lives_on() -> anyhow::Result<()> {
    let host = Host::new().await?;
    let (bad, good) = (order_created(), order_created());
    let poison = bad.event_id;
    let handler = ScriptedHandler::that(move |event, _| {
        assert_ne!(event.id, poison, "on purpose");
        Ok(())
    });
    let _consumer = consume(&host, &handler);
    host.put_event(QUEUE, &bad).await?;
    host.put_event(QUEUE, &good).await?;
    handler.has_applied(&[good.event_id]).await?;
    let dead = host.take(&topology::dead_letter_queue(QUEUE)).await?;
    assert_eq!(header(&dead, "reason"), "unexpected");
    assert!((5..=6).contains(&handler.tries(poison)), "{} tries", handler.tries(poison));
    Ok(())
}

#[tokio::test]
async fn a_failure_that_passes_after_a_few_tries_needs_nobody() -> anyhow::Result<()> {
    let host = Host::new().await?;
    let event = order_created();
    host.put_event(QUEUE, &event).await?;
    let handler =
        ScriptedHandler::that(
            |_, tries| {
                if tries < 4 { Err(Failure::Unexpected("odd".into())) } else { Ok(()) }
            },
        );
    let _consumer = consume(&host, &handler);
    handler.has_applied(&[event.event_id]).await?;
    assert!(host.is_empty(&topology::dead_letter_queue(QUEUE)).await?);
    Ok(())
}

#[tokio::test]
async fn a_queue_that_was_deleted_is_declared_and_consumed_again() -> anyhow::Result<()> {
    let host = Host::new().await?;
    let handler = ScriptedHandler::that(|_, _| Ok(()));
    let _consumer = consume(&host, &handler);
    let before = order_created();
    host.put_event(QUEUE, &before).await?;
    handler.has_applied(&[before.event_id]).await?;
    host.channel.queue_delete(QUEUE.into(), QueueDeleteOptions::default()).await?;
    let after = order_created();
    eventually("the queue to be there again", PATIENCE, async || {
        // A mandatory message to a queue that is not there comes back; then it is tried again.
        host.put_event(QUEUE, &after).await?;
        Ok(handler.applied().contains(&after.event_id).then_some(()))
    })
    .await
}

#[tokio::test]
async fn what_was_in_hand_at_a_stop_is_delivered_to_the_next_consumer() -> anyhow::Result<()> {
    let host = Host::new().await?;
    let event = order_created();
    host.put_event(QUEUE, &event).await?;
    let stuck = ScriptedHandler::that(|_, _| Err(Failure::Temporary("the database is away".into())));
    let consumer = consume(&host, &stuck);
    eventually("a first try", PATIENCE, async || Ok((stuck.tries(event.event_id) > 0).then_some(()))).await?;
    drop(consumer);
    let heir = ScriptedHandler::that(|_, _| Ok(()));
    let _consumer = consume(&host, &heir);
    heir.has_applied(&[event.event_id]).await
}
