//! Messages that no relay of ours would send.

use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldArray, FieldTable},
};
use rabbitmq::{ConnectionStatus, DeadLetterCollector, topology};

use crate::{
    scripted_handler::{QUEUE, ScriptedHandler, consume},
    scripted_store::ScriptedStore,
    support::{Running, Vhost, order_created},
};

/// As large as the broker takes.
const LARGEST: usize = 1024 * 1024;

fn table(entries: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (key, value) in entries {
        table.insert((*key).into(), value.clone());
    }
    table
}

/// Headers that the consumer or the collector reads, with values of other types than it expects.
fn odd_headers() -> Vec<FieldTable> {
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
async fn headers_of_other_types_and_forged_ones_stop_no_event() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let mut ids = vec![];
    for headers in odd_headers() {
        let event = order_created();
        ids.push(event.event_id);
        let properties = BasicProperties::default()
            .with_message_id(event.event_id.to_string().into())
            .with_headers(headers);
        vhost.put_with(QUEUE, properties, event.payload.as_bytes()).await?;
    }
    let handler = ScriptedHandler::that_applies();
    let _consumer = consume(&vhost, &handler);
    let last = order_created();
    vhost.put_event(QUEUE, &last).await?;
    handler.has_applied(&[last.event_id]).await?;
    // One claims to have been delivered very often. How often is no reason to set a message aside.
    let aside = handler.letters.letters();
    assert_eq!((handler.applied().len(), aside.len()), (ids.len() + 1, 0), "{aside:?}");
    Ok(())
}

#[tokio::test]
async fn dead_letters_with_forged_headers_are_saved() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let dead = topology::dead_letter_queue(QUEUE);
    let all = odd_headers();
    for (number, headers) in all.iter().enumerate() {
        let properties = BasicProperties::default()
            .with_message_id(number.to_string().into())
            .with_headers(headers.clone());
        vhost.put_with(&dead, properties, b"x").await?;
    }
    let store = ScriptedStore::that_saves();
    let collector = DeadLetterCollector::new(vhost.endpoint(), QUEUE, ConnectionStatus::new("test"));
    let running = store.clone();
    let _collector = Running::start(|stop| collector.run(running, stop));
    let letters = store.saved(all.len()).await?;
    let ids: Vec<_> = letters.iter().filter_map(|letter| letter.message_id.clone()).collect();
    assert_eq!(ids, (0..all.len()).map(|number| number.to_string()).collect::<Vec<_>>());
    assert!(
        letters.iter().all(|letter| letter.routing_key == dead || letter.reason == "expired"),
        "{letters:?}"
    );
    Ok(())
}

#[tokio::test]
async fn huge_message_is_set_aside_with_its_bytes_and_later_ones_go_on() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let (huge, next) = (vec![b'['; LARGEST], order_created());
    vhost.put(QUEUE, "huge", &huge).await?;
    vhost.put_event(QUEUE, &next).await?;
    let handler = ScriptedHandler::that_applies();
    let _consumer = consume(&vhost, &handler);
    handler.has_applied(&[next.event_id]).await?;
    let letters = handler.letters.saved(1).await?;
    assert_eq!((letters[0].reason.as_str(), letters[0].body == huge), ("malformed", true));
    Ok(())
}
