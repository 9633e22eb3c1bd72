//! Who says what to whom, as an [AsyncAPI 3.0](https://www.asyncapi.com/docs/reference/specification/v3.0.0) document.
//!
//! What is said comes from [`Contract::all`], who listens from [`topology`](crate::topology), who speaks from the `source` of
//! the examples. Each routing key is a channel to which one service sends; each queue is a channel from which one
//! receives, and RabbitMQ's bindings are between the two.

use std::collections::BTreeMap;

use events::{Contract, routing_key};
use serde_json::{Map, Value, json};

use crate::topology::{EVENTS, HOUSE, Queue};

/// The version of AsyncAPI's AMQP bindings that is used here.
const BINDING: &str = "0.3.0";

/// One version of one event, and what it is called in the document.
struct Message {
    contract: Contract,
    /// Whether it is its event's newest version, the only one that is written.
    is_written: bool,
    name: String,
    key: String,
    example: Value,
}

/// The document.
///
/// # Errors
/// When an example is not JSON, which a test of its contract would have found.
pub fn document() -> serde_json::Result<Value> {
    let messages = messages()?;
    Ok(json!({
        "asyncapi": "3.0.0",
        "id": "urn:shop:events",
        "info": {
            "title": "Events of the shop",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "What the services say to each other. Every message is persistent, comes at least once, and has \
                            the same `id` in every copy: recognise duplicates by it. Events of one `subject` come in the \
                            order of their `sequence`, copies apart. Ignore fields that you do not know; set aside, and \
                            never drop, a type or a version that you do not know.",
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "defaultContentType": "application/cloudevents+json",
        "servers": {
            "rabbitmq": {
                "host": "rabbitmq:5672",
                "pathname": "/shop",
                "protocol": "amqp",
                "protocolVersion": "0.9.1",
                "description": "RabbitMQ, as it is called in compose.yaml.",
            },
        },
        "channels": channels(&messages),
        "operations": operations(&messages),
        "components": {
            "messages": messages.iter().map(|one| (one.name.clone(), one.describe())).collect::<Map<_, _>>(),
            "schemas": messages.iter().map(|one| (one.name.clone(), one.schema())).collect::<Map<_, _>>(),
        },
    }))
}

fn messages() -> serde_json::Result<Vec<Message>> {
    let all = Contract::all();
    let newest = |event_type| {
        let versions = all.iter().filter(|one| one.event_type == event_type).map(|one| one.version);
        versions.max()
    };
    let messages = all.iter().cloned().map(|contract| {
        Ok(Message {
            is_written: Some(contract.version) == newest(contract.event_type),
            name: format!("{}.{}", contract.event_type, contract.version),
            key: routing_key(contract.event_type),
            example: serde_json::from_str(contract.example)?,
            contract,
        })
    });
    messages.collect()
}

impl Message {
    /// Who says it: `/orders` is the service `orders`.
    fn writer(&self) -> &str {
        self.example["source"].as_str().unwrap_or_default().trim_start_matches('/')
    }

    fn schema(&self) -> Value {
        let mut schema = self.contract.schema.clone();
        if let Value::Object(schema) = &mut schema {
            // The document has a dialect of its own. Nothing in our schemas means anything else in it.
            schema.remove("$schema");
            if !self.is_written {
                schema.insert("deprecated".into(), true.into());
            }
        }
        schema
    }

    fn describe(&self) -> Value {
        let Self { contract, name, example, .. } = self;
        let mut message = json!({
            "name": contract.event_type,
            "title": contract.schema["title"],
            "contentType": "application/cloudevents+json",
            "headers": {
                "type": "object",
                "properties": {
                    "traceparent": {
                        "type": "string",
                        "description": "W3C Trace Context: the same as in the payload.",
                    },
                },
            },
            "payload": { "$ref": format!("#/components/schemas/{name}") },
            "examples": [{ "name": "first", "summary": "As it was first published.", "payload": example }],
            "bindings": { "amqp": { "messageType": contract.event_type, "bindingVersion": BINDING } },
        });
        if self.is_written {
            message["summary"] = json!(format!("Written by {}.", self.writer()));
        } else {
            message["summary"] =
                json!("Not written any more: a newer version is. Still read by whoever replays history.");
            // AsyncAPI has the word for schemas only.
            message["x-deprecated"] = true.into();
        }
        message
    }

    fn in_channel(&self, channel: &str) -> Value {
        json!({ "$ref": format!("#/channels/{channel}/messages/{}", self.name) })
    }
}

/// All messages of a channel, by name.
fn references<'messages>(messages: impl Iterator<Item = &'messages Message>) -> Value {
    let reference = |one: &Message| json!({ "$ref": format!("#/components/messages/{}", one.name) });
    messages.map(|one| (one.name.clone(), reference(one))).collect::<Map<_, _>>().into()
}

/// Who wants what: each key, and the queues that are bound to it.
fn queues_by_key() -> BTreeMap<&'static str, Vec<&'static str>> {
    let mut queues: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for Queue { name: queue, keys } in HOUSE {
        for key in keys {
            queues.entry(*key).or_default().push(queue);
        }
    }
    queues
}

/// The service that consumes a queue: `orders.events` is that of `orders`.
fn reader(queue: &str) -> &str {
    queue.split('.').next().unwrap_or(queue)
}

fn channels(messages: &[Message]) -> Map<String, Value> {
    let queues = queues_by_key();
    let mut channels = Map::new();
    for Message { key, .. } in messages {
        let bound: &[_] = queues.get(key.as_str()).map_or(&[], Vec::as_slice);
        let channel = json!({
            "address": key,
            "description": format!("Routing key of {EVENTS}. Bound to it: {}.", bound.join(", ")),
            "messages": references(messages.iter().filter(|one| one.key == *key)),
            "bindings": { "amqp": {
                "is": "routingKey",
                "exchange": { "name": EVENTS, "type": "topic", "durable": true, "autoDelete": false, "vhost": "shop" },
                "bindingVersion": BINDING,
            } },
            "x-queues": bound,
        });
        channels.insert(key.clone(), channel);
    }
    for Queue { name: queue, keys } in HOUSE {
        let channel = json!({
            "address": queue,
            "description": format!(
                "A quorum queue, consumed by one instance at a time. Bound to {EVENTS} with: {}. What cannot be applied goes \
                 to {queue}.dead.",
                keys.join(", "),
            ),
            "messages": references(messages.iter().filter(|one| keys.contains(&one.key.as_str()))),
            "bindings": { "amqp": {
                "is": "queue",
                "queue": { "name": queue, "durable": true, "exclusive": false, "autoDelete": false, "vhost": "shop" },
                "bindingVersion": BINDING,
            } },
            "x-routing-keys": keys,
        });
        channels.insert(queue.into(), channel);
    }
    channels
}

fn operations(messages: &[Message]) -> Map<String, Value> {
    let mut operations = Map::new();
    // Of each event the newest version is written; all versions are read.
    for one in messages.iter().filter(|one| one.is_written) {
        let writer = one.writer();
        let operation = json!({
            "action": "send",
            "channel": { "$ref": format!("#/channels/{}", one.key) },
            "title": format!("{writer} sends {}", one.contract.event_type),
            "messages": [one.in_channel(&one.key)],
            "bindings": { "amqp": { "deliveryMode": 2, "mandatory": true, "bindingVersion": BINDING } },
            "x-service": writer,
        });
        operations.insert(format!("{writer}.send.{}", one.contract.event_type), operation);
    }
    for Queue { name: queue, keys } in HOUSE {
        let reader = reader(queue);
        let heard = messages.iter().filter(|one| keys.contains(&one.key.as_str()));
        let operation = json!({
            "action": "receive",
            "channel": { "$ref": format!("#/channels/{queue}") },
            "title": format!("{reader} receives"),
            "description": "Acknowledged after the commit of what was done about it.",
            "messages": heard.map(|one| one.in_channel(queue)).collect::<Vec<_>>(),
            "bindings": { "amqp": { "ack": true, "bindingVersion": BINDING } },
            "x-service": reader,
        });
        operations.insert(format!("{reader}.receive"), operation);
    }
    operations
}
