use lapin::{
    message::Delivery,
    types::{AMQPValue, FieldTable},
};
use messaging::DeadLetter;
use serde_json::{Map, Value, json};

/// The longest detail of a dead letter, in characters: an error text can quote the whole message.
const MAX_DETAIL: usize = 500;

/// How deep headers may be nested. Thousands of levels would overflow the stack of whatever writes or reads them as JSON.
const MAX_DEPTH: usize = 16;

/// The dead letter of a delivery that its consumer cannot apply.
pub(crate) fn from_consumer(
    queue: &'static str,
    delivery: &Delivery,
    reason: &str,
    detail: &str,
) -> DeadLetter {
    DeadLetter {
        queue,
        arrival: None,
        message_id: message_id(delivery),
        reason: reason.to_owned(),
        detail: detail.chars().take(MAX_DETAIL).collect(),
        headers: headers(delivery),
        routing_key: delivery.routing_key.to_string(),
        body: delivery.data.clone(),
    }
}

/// The dead letter in a delivery from the dead-letter queue. The broker puts it there with an `x-death` header. One that
/// was published by hand has none, and is saved all the same.
pub(crate) fn from_dead_letter_queue(queue: &'static str, delivery: Delivery) -> DeadLetter {
    let headers = headers(&delivery);
    let (arrival, reason, detail, routing_key) = match headers.get("x-death").and_then(|deaths| deaths.get(0))
    {
        Some(death) => {
            // `delivery_limit`, as the broker spells it.
            let reason = death["reason"].as_str().unwrap_or("unknown").replace('_', "-");
            let detail = match reason.as_str() {
                "rejected" => "its consumer could not save it as a dead letter; the log says why".to_owned(),
                _ => format!("the broker dead-lettered it: {reason}; it may have crashed its consumer"),
            };
            let key = death["routing-keys"][0].as_str().map(str::to_owned);
            let arrival = format!("{}/{reason}/{}/{}", death["queue"], death["time"], death["count"]);
            (Some(arrival), reason, detail, key)
        }
        None => {
            let detail = "it carries no reason: it was published to the dead-letter queue by hand";
            (None, "unknown".to_owned(), detail.to_owned(), None)
        }
    };
    DeadLetter {
        queue,
        arrival,
        message_id: message_id(&delivery),
        reason,
        detail,
        headers,
        routing_key: routing_key.unwrap_or_else(|| delivery.routing_key.to_string()),
        body: delivery.data,
    }
}

fn message_id(delivery: &Delivery) -> Option<String> {
    delivery.properties.message_id().as_ref().map(ToString::to_string)
}

fn headers(delivery: &Delivery) -> Value {
    delivery.properties.headers().as_ref().map_or_else(|| json!({}), |table| object(table, 0))
}

fn object(table: &FieldTable, depth: usize) -> Value {
    let entries = table.inner().iter().map(|(key, value)| (key.to_string(), plain(value, depth + 1)));
    Value::Object(entries.collect::<Map<_, _>>())
}

/// An AMQP value as JSON. Bytes that are not UTF-8 become text with replacement characters.
fn plain(value: &AMQPValue, depth: usize) -> Value {
    match value {
        AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) if depth > MAX_DEPTH => {
            json!("nested too deeply")
        }
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
        AMQPValue::FieldArray(values) => {
            values.as_slice().iter().map(|value| plain(value, depth + 1)).collect()
        }
        AMQPValue::FieldTable(table) => object(table, depth),
        AMQPValue::Void => Value::Null,
    }
}
