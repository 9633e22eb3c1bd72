use futures_util::StreamExt;
use lapin::{
    BasicProperties,
    options::BasicRejectOptions,
    types::{AMQPValue, FieldArray, FieldTable},
};
use messaging::{DeadLetter, Failure};
use metrics_exporter_prometheus::PrometheusBuilder;
use rabbitmq::queues;
use testbed::eventually;

use crate::{
    scripted::{ScriptedStore, collect, ids, unavailable},
    support::{DEADLINE, QUEUE, Running, Switch, Vhost},
};

/// The dead-letter queue of [`QUEUE`].
fn dead() -> String {
    queues::dead_letter_queue(QUEUE)
}

/// Stops the collector and checks that it has acknowledged every dead letter.
async fn stop_and_check_acknowledged(collector: Running, vhost: &Vhost) -> anyhow::Result<()> {
    collector.stop().await?;
    let left = vhost.count_without_consumers(&dead()).await?;
    anyhow::ensure!(left == 0, "{left} dead letters were saved and not acknowledged");
    Ok(())
}

#[tokio::test]
async fn message_dead_lettered_by_the_delivery_limit_is_saved_with_that_reason() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let event = vhost.put_event().await?;
    let store = ScriptedStore::that_saves();
    let collector = collect(&vhost, &store);
    // A consumer that returns the message to the queue, again and again, until the broker dead-letters it.
    let (_channel, mut deliveries) = vhost.consume(QUEUE, 1).await?;
    tokio::spawn(async move {
        while let Some(Ok(delivery)) = deliveries.next().await {
            let _ = delivery.reject(BasicRejectOptions { requeue: true }).await;
        }
    });
    let letter = &store.saved(1).await?[0];
    assert_eq!((letter.reason.as_str(), &letter.message_id), ("delivery-limit", &Some(event.to_string())));
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&letter.body)?["id"], event.to_string());
    assert!(letter.arrival.is_some(), "{letter:?}");
    stop_and_check_acknowledged(collector, &vhost).await
}

#[tokio::test]
async fn while_the_store_is_unavailable_dead_letters_wait_in_the_queue_in_order() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    for number in 0..5 {
        vhost.put(&dead(), &format!("letter-{number}"), b"x").await?;
    }
    let store =
        ScriptedStore::new(|_, earlier_calls| if earlier_calls < 6 { Err(unavailable()) } else { Ok(true) });
    let collector = collect(&vhost, &store);
    collector.until_failing("store is unavailable").await?;
    let letters = store.saved(5).await?;
    collector.until_working().await?;
    assert_eq!(ids(&letters), ["letter-0", "letter-1", "letter-2", "letter-3", "letter-4"]);
    let first = (letters[0].reason.as_str(), &letters[0].arrival);
    assert_eq!(first, ("unknown", &None), "it was published to the dead-letter queue by hand");
    stop_and_check_acknowledged(collector, &vhost).await
}

#[tokio::test]
async fn dead_letter_saved_but_not_acknowledged_is_delivered_again_with_the_same_id() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    vhost.put(QUEUE, "poison", b"x").await?;
    vhost.reject(QUEUE).await?;
    let first = ScriptedStore::that_hangs();
    let collector = collect(&vhost, &first);
    let before = first.saved(1).await?;
    collector.kill();
    let second = ScriptedStore::that_saves();
    let collector = collect(&vhost, &second);
    let after = second.saved(1).await?;
    let identity =
        |letter: &DeadLetter| (letter.arrival.clone(), letter.message_id.clone(), letter.body.clone());
    assert!(before[0].arrival.is_some());
    assert_eq!(identity(&before[0]), identity(&after[0]), "the table recognizes it by these");
    stop_and_check_acknowledged(collector, &vhost).await
}

/// More than the collector's prefetch: they must not keep it from the others, and are saved once their cause is repaired. A
/// collector that is stopped in the meantime leaves them to the next one.
#[tokio::test]
async fn dead_letters_that_cannot_be_saved_block_no_others_and_are_saved_after_the_repair()
-> anyhow::Result<()> {
    const REFUSED: usize = 20;
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let vhost = Vhost::new().await?;
    for number in 0..REFUSED {
        vhost.put(&dead(), &format!("refused-{number}"), b"x").await?;
    }
    vhost.put(&dead(), "good", b"x").await?;
    let repaired = Switch::default();
    let is_repaired = repaired.clone();
    let store = ScriptedStore::new(move |letter, _| {
        if ids(std::slice::from_ref(letter))[0] == "good" || is_repaired.is_on() {
            return Ok(true);
        }
        Err(Failure::Unexpected("permission denied for table dead_letters".into()))
    });
    let collector = collect(&vhost, &store);
    assert_eq!(ids(&store.saved(1).await?), ["good"]);
    collector.stop().await?;
    let collector = collect(&vhost, &store);
    collector.until_failing("20 dead letters cannot be saved").await?;
    let metrics = recorder.handle().render();
    assert!(metrics.contains("broker_connected{role=\"test\"} 1"), "the connection is open: {metrics}");
    repaired.set(true);
    store.saved(REFUSED + 1).await?;
    collector.until_working().await?;
    stop_and_check_acknowledged(collector, &vhost).await
}

/// An operator's policy may allow fewer deliveries than the queue's own limit, and there is no other queue behind this one.
#[tokio::test]
async fn dead_letter_that_cannot_be_saved_for_a_while_is_kept_under_a_policy_of_one_redelivery()
-> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    vhost.operator().set_policy(&dead(), Some(r#"{"delivery-limit": 1}"#)).await?;
    vhost.put(&dead(), "letter", b"x").await?;
    let store = ScriptedStore::new(|_, earlier_calls| match earlier_calls {
        0 | 1 => Err(Failure::Unexpected("set by the test".into())),
        _ => Ok(true),
    });
    let collector = collect(&vhost, &store);
    let letters = store.saved(1).await?;
    assert_eq!(letters[0].headers.get("x-delivery-count"), None, "{letters:?}");
    stop_and_check_acknowledged(collector, &vhost).await
}

/// Each dead letter may be as large as a message can be.
#[tokio::test]
async fn collector_holds_few_dead_letters_at_a_time() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    for number in 0..100 {
        vhost.put(&dead(), &number.to_string(), b"x").await?;
    }
    let _collector = collect(&vhost, &ScriptedStore::that_hangs());
    eventually("sixteen to be delivered, and no more", DEADLINE, async || {
        let waiting = vhost.counts(&dead()).await?.0;
        anyhow::ensure!(waiting == 84, "{waiting} of 100 wait in the queue");
        Ok(Some(()))
    })
    .await
}

fn table(entries: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (key, value) in entries {
        table.insert((*key).into(), value.clone());
    }
    table
}

/// Headers that the consumer or the collector reads, with values of other types than it expects. No relay of ours sends
/// them.
pub(crate) fn odd_headers() -> Vec<FieldTable> {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let death = |entries: &[(&str, AMQPValue)]| {
        AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::FieldTable(table(entries))]))
    };
    vec![
        table(&[("traceparent", AMQPValue::LongInt(7))]),
        table(&[("traceparent", text("not a trace"))]),
        table(&[("x-delivery-count", text("many"))]),
        table(&[("x-delivery-count", AMQPValue::LongLongInt(-1))]),
        table(&[("x-delivery-count", AMQPValue::LongLongInt(i64::MAX))]),
        table(&[("x-death", text("forged"))]),
        table(&[("x-death", AMQPValue::FieldArray(FieldArray::default()))]),
        table(&[("x-death", death(&[]))]),
        table(&[("x-death", death(&[("reason", AMQPValue::LongInt(1)), ("count", text("one"))]))]),
        table(&[("x-death", death(&[("reason", text("expired")), ("routing-keys", text("order.created"))]))]),
        table(&[
            ("binary", text("\u{0}")),
            ("nested", AMQPValue::FieldTable(table(&[("x", AMQPValue::Void)]))),
        ]),
    ]
}

#[tokio::test]
async fn dead_letters_with_forged_headers_are_saved() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let mut numbers = vec![];
    for (number, headers) in odd_headers().into_iter().enumerate() {
        numbers.push(number.to_string());
        let id = number.to_string().into();
        let properties = BasicProperties::default().with_message_id(id).with_headers(headers);
        vhost.put_with(&dead(), properties, b"x").await?;
    }
    let store = ScriptedStore::that_saves();
    let _collector = collect(&vhost, &store);
    let letters = store.saved(numbers.len()).await?;
    assert_eq!(ids(&letters), numbers);
    let is_kept = |letter: &DeadLetter| letter.routing_key == dead() || letter.reason == "expired";
    assert!(letters.iter().all(is_kept), "{letters:?}");
    Ok(())
}
