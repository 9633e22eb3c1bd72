//! Generates the AsyncAPI 3.0 document of the events.
//!
//! <https://www.asyncapi.com/docs/reference/specification/v3.0.0>
//!
//! The messages come from the files of `shared/events/contracts`, the receivers from [`queues`](rabbitmq::queues),
//! the senders from the `source` of the examples. Each routing key is a channel to which one service sends. Each queue
//! is a channel from which one service receives. RabbitMQ's bindings connect the two.

use std::{fs, path::Path};

use events::routing_key;
use rabbitmq::queues::{EVENTS, FOR_EXTERNAL_CONSUMERS, Queue, SHOP_QUEUES};
use serde_json::{Map, Value, json};

/// The version of AsyncAPI's AMQP bindings that the document uses.
const BINDING_VERSION: &str = "0.3.0";

/// One version of one event.
pub(crate) struct Message {
    pub(crate) event_type: String,
    version: u8,
    schema: Value,
    /// Whether this is the event's newest version, the only one that is still written.
    is_written: bool,
    /// The name in the document, for example `OrderCreated.1`.
    pub(crate) name: String,
    routing_key: String,
    example: Value,
}

pub(crate) fn generate() -> Value {
    let messages = messages();
    let by_name = |value: fn(&Message) -> Value| -> Map<String, Value> {
        messages.iter().map(|message| (message.name.clone(), value(message))).collect()
    };
    json!({
        "asyncapi": "3.0.0",
        "id": "urn:shop:events",
        "info": {
            "title": "Events of the shop",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The events that the services publish. Every message is persistent and is delivered at \
                            least once. All copies of an event have the same `id`: recognize duplicates by it. Events \
                            of one `subject` are delivered in the order of their `sequence`, apart from duplicates. \
                            Ignore fields that you do not know. Set aside, and never drop, a type or a version that \
                            you do not know.",
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "defaultContentType": "application/cloudevents+json",
        "servers": {
            "rabbitmq": {
                "host": "rabbitmq:5672",
                "pathname": "/shop",
                "protocol": "amqp",
                "protocolVersion": "0.9.1",
                "description": "RabbitMQ, with the host name of compose.yaml.",
            },
        },
        "channels": channels(&messages),
        "operations": operations(&messages),
        "components": {
            "messages": by_name(Message::describe),
            "schemas": by_name(Message::schema),
        },
    })
}

/// All versions of all events, by name and version.
pub(crate) fn messages() -> Vec<Message> {
    let contracts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../events/contracts");
    let read = |file: String| serde_json::from_slice(&fs::read(contracts.join(file)).unwrap()).unwrap();
    let mut messages: Vec<Message> = vec![];
    for file in fs::read_dir(&contracts).unwrap() {
        let file = file.unwrap().file_name().into_string().unwrap();
        let Some(name) = file.strip_suffix(".schema.json") else { continue };
        let (event_type, version) = name.split_once('.').unwrap();
        messages.push(Message {
            event_type: event_type.to_owned(),
            version: version.parse().unwrap(),
            schema: read(format!("{name}.schema.json")),
            is_written: true,
            name: name.to_owned(),
            routing_key: routing_key(event_type),
            example: read(format!("{name}.example.json")),
        });
    }
    messages.sort_by(|one, other| (&one.event_type, one.version).cmp(&(&other.event_type, other.version)));
    for next in 1..messages.len() {
        messages[next - 1].is_written = messages[next].event_type != messages[next - 1].event_type;
    }
    messages
}

impl Message {
    /// The service that writes it: `orders`, if the `source` is `/orders`.
    fn writer(&self) -> &str {
        self.example["source"].as_str().unwrap_or_default().trim_start_matches('/')
    }

    fn schema(&self) -> Value {
        let mut schema = self.schema.clone();
        // AsyncAPI defines the dialect of its schemas. These schemas mean the same in both.
        schema.as_object_mut().unwrap().remove("$schema");
        if !self.is_written {
            schema["deprecated"] = true.into();
        }
        schema
    }

    fn describe(&self) -> Value {
        let Self { event_type, schema, name, example, .. } = self;
        let mut message = json!({
            "name": event_type,
            "title": schema["title"],
            "contentType": "application/cloudevents+json",
            "headers": {
                "type": "object",
                "properties": {
                    "traceparent": {
                        "type": "string",
                        "description": "W3C Trace Context, the same as in the payload.",
                    },
                },
            },
            "payload": { "$ref": format!("#/components/schemas/{name}") },
            "examples": [{ "name": "first", "summary": "A message as it was first published.", "payload": example }],
            "bindings": { "amqp": { "messageType": event_type, "bindingVersion": BINDING_VERSION } },
        });
        if self.is_written {
            message["summary"] = format!("Written by {}.", self.writer()).into();
        } else {
            let old = "No longer written: replaced by a newer version. Still read, because old events may be replayed.";
            message["summary"] = old.into();
            // AsyncAPI defines `deprecated` for schemas only.
            message["x-deprecated"] = true.into();
        }
        message
    }

    fn in_channel(&self, channel: &str) -> Value {
        json!({ "$ref": format!("#/channels/{channel}/messages/{}", self.name) })
    }
}

/// References to the messages of a channel, by name.
fn references<'messages>(messages: impl Iterator<Item = &'messages Message>) -> Value {
    let reference = |message: &Message| json!({ "$ref": format!("#/components/messages/{}", message.name) });
    messages.map(|message| (message.name.clone(), reference(message))).collect::<Map<_, _>>().into()
}

/// The messages that a queue with these keys receives.
fn received<'messages>(
    messages: &'messages [Message],
    keys: &[&str],
) -> impl Iterator<Item = &'messages Message> {
    messages.iter().filter(|message| keys.contains(&message.routing_key.as_str()))
}

fn channels(messages: &[Message]) -> Map<String, Value> {
    let mut channels = Map::new();
    for Message { routing_key: key, .. } in messages {
        let queues = SHOP_QUEUES.iter().filter(|queue| queue.keys.contains(&key.as_str()));
        let bound: Vec<_> = queues.map(|queue| queue.name).collect();
        let description = match bound[..] {
            [] => "No service consumes it, and it is not mandatory.".to_owned(),
            _ => format!("Bound queues: {}.", bound.join(", ")),
        };
        let channel = json!({
            "address": key,
            "description": format!("Routing key of the exchange {EVENTS}. {description}"),
            "messages": references(messages.iter().filter(|message| message.routing_key == *key)),
            "bindings": { "amqp": {
                "is": "routingKey",
                "exchange": { "name": EVENTS, "type": "topic", "durable": true, "autoDelete": false, "vhost": "shop" },
                "bindingVersion": BINDING_VERSION,
            } },
            "x-queues": bound,
        });
        channels.insert(key.clone(), channel);
    }
    for Queue { name: queue, keys } in SHOP_QUEUES {
        let channel = json!({
            "address": queue,
            "description": format!(
                "A quorum queue, consumed by one instance at a time. Bound to {EVENTS} with: {}. The consumer saves \
                 what it cannot apply in its table dead_letters; {queue}.dead gets only what the broker sets aside.",
                keys.join(", "),
            ),
            "messages": references(received(messages, keys)),
            "bindings": { "amqp": {
                "is": "queue",
                "queue": { "name": queue, "durable": true, "exclusive": false, "autoDelete": false, "vhost": "shop" },
                "bindingVersion": BINDING_VERSION,
            } },
            "x-routing-keys": keys,
        });
        channels.insert(queue.into(), channel);
    }
    channels
}

fn operations(messages: &[Message]) -> Map<String, Value> {
    let mut operations = Map::new();
    // Services send the newest version of each event, and receive all versions.
    for message in messages.iter().filter(|message| message.is_written) {
        let writer = message.writer();
        let mandatory = !FOR_EXTERNAL_CONSUMERS.contains(&message.routing_key.as_str());
        let operation = json!({
            "action": "send",
            "channel": { "$ref": format!("#/channels/{}", message.routing_key) },
            "title": format!("{writer} sends {}", message.event_type),
            "messages": [message.in_channel(&message.routing_key)],
            "bindings": { "amqp": { "deliveryMode": 2, "mandatory": mandatory, "bindingVersion": BINDING_VERSION } },
            "x-service": writer,
        });
        operations.insert(format!("{writer}.send.{}", message.event_type), operation);
    }
    for Queue { name: queue, keys } in SHOP_QUEUES {
        let reader = queue.trim_end_matches(".events");
        let operation = json!({
            "action": "receive",
            "channel": { "$ref": format!("#/channels/{queue}") },
            "title": format!("{reader} receives"),
            "description": "The service acknowledges a message after it has committed the effect.",
            "messages": received(messages, keys).map(|message| message.in_channel(queue)).collect::<Vec<_>>(),
            "bindings": { "amqp": { "ack": true, "bindingVersion": BINDING_VERSION } },
            "x-service": reader,
        });
        operations.insert(format!("{reader}.receive"), operation);
    }
    operations
}
