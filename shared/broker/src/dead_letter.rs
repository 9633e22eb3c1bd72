use lapin::{
    message::Delivery,
    types::{AMQPValue, FieldTable},
};
use messaging::DeadLetter;
use serde_json::{Map, Value, json};

use crate::dead_letter_publisher::{DETAIL, LETTER_ID, REASON, ROUTING_KEY};

/// Reads a dead letter from a delivery. Our consumers publish it with a reason; the broker with an `x-death` header. One
/// that was published by hand has neither, and is saved all the same.
pub(crate) fn read(queue: &'static str, delivery: &Delivery) -> DeadLetter {
    let headers = delivery.properties.headers().as_ref().map_or_else(|| json!({}), object);
    let text = |key: &str| headers.get(key).and_then(Value::as_str).map(str::to_owned);
    let death = headers.get("x-death").and_then(|deaths| deaths.get(0));
    let (arrival, reason, detail, routing_key) = if let Some(id) = text(LETTER_ID) {
        (Some(id), text(REASON), text(DETAIL), text(ROUTING_KEY))
    } else if let Some(death) = death {
        // `delivery_limit`, as the broker spells it.
        let reason = death["reason"].as_str().unwrap_or("unknown").replace('_', "-");
        let detail = format!("the broker dead-lettered it: {reason}; it may have crashed its consumer");
        let key = death["routing-keys"][0].as_str().map(str::to_owned);
        let mark = format!("{}/{reason}/{}/{}", death["queue"], death["time"], death["count"]);
        (Some(mark), Some(reason), Some(detail), key)
    } else {
        (None, None, None, None)
    };
    DeadLetter {
        queue,
        arrival,
        message_id: delivery.properties.message_id().as_ref().map(ToString::to_string),
        reason: reason.unwrap_or_else(|| "unknown".into()),
        detail: detail.unwrap_or_else(|| {
            "it carries no reason: it was published to the dead-letter queue by hand".into()
        }),
        headers,
        routing_key: routing_key.unwrap_or_else(|| delivery.routing_key.to_string()),
        body: delivery.data.clone(),
    }
}

fn object(table: &FieldTable) -> Value {
    let entries = table.inner().iter().map(|(key, value)| (key.to_string(), plain(value)));
    Value::Object(entries.collect::<Map<_, _>>())
}

/// An AMQP value as JSON. Bytes that are not UTF-8 become text with replacement characters.
fn plain(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Boolean(value) => json!(value),
        AMQPValue::ShortShortInt(value) => json!(value),
        AMQPValue::ShortShortUInt(value) => json!(value),
        AMQPValue::ShortInt(value) => json!(value),
        AMQPValue::ShortUInt(value) => json!(value),
        AMQPValue::LongInt(value) => json!(value),
        AMQPValue::LongUInt(value) => json!(value),
        AMQPValue::LongLongInt(value) => json!(value),
        AMQPValue::Float(value) => json!(value),
        AMQPValue::Double(value) => json!(value),
        AMQPValue::DecimalValue(value) => json!({ "scale": value.scale, "value": value.value }),
        AMQPValue::ShortString(value) => json!(value.as_str()),
        AMQPValue::LongString(value) => json!(String::from_utf8_lossy(value.as_bytes())),
        AMQPValue::ByteArray(value) => json!(String::from_utf8_lossy(value.as_slice())),
        AMQPValue::Timestamp(value) => json!(value),
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(plain).collect(),
        AMQPValue::FieldTable(table) => object(table),
        AMQPValue::Void => Value::Null,
    }
}
