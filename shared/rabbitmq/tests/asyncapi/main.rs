//! `docs/asyncapi.json`, which the order service serves, is generated from the contracts and the topology.
//!
//! After a change, `UPDATE_CONTRACTS=1 cargo test -p rabbitmq --test asyncapi` writes it again.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed precondition ends a test")]

mod document;

use std::{collections::BTreeSet, fs, path::Path};

use events::routing_key;
use rabbitmq::queues::{FOR_EXTERNAL_CONSUMERS, Queue, SHOP_QUEUES};
use serde_json::Value;

fn keys(object: &Value) -> BTreeSet<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

/// The services that have an operation with this action.
fn services_that(document: &Value, action: &str) -> BTreeSet<String> {
    let operations = document["operations"].as_object().unwrap().values();
    let matching = operations.filter(|operation| operation["action"] == action);
    matching.map(|operation| operation["x-service"].as_str().unwrap().to_owned()).collect()
}

/// Resolves a reference within the document.
fn resolve<'document>(document: &'document Value, reference: &Value) -> &'document Value {
    let target = reference["$ref"].as_str().and_then(|target| target.strip_prefix('#')).unwrap();
    document.pointer(target).unwrap_or_else(|| panic!("{target} does not exist"))
}

#[test]
fn committed_document_equals_the_generated_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/asyncapi.json");
    let generated = format!("{}\n", serde_json::to_string_pretty(&document::generate()).unwrap());
    if std::env::var_os("UPDATE_CONTRACTS").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    assert!(
        fs::read_to_string(&path).is_ok_and(|committed| committed == generated),
        "docs/asyncapi.json is out of date: run UPDATE_CONTRACTS=1 cargo test -p rabbitmq --test asyncapi"
    );
}

#[test]
fn each_contract_is_a_message_whose_schema_accepts_only_its_examples() {
    let document = document::generate();
    let names: BTreeSet<_> = document::messages().into_iter().map(|message| message.name).collect();
    let in_document = &document["components"]["messages"];
    assert_eq!(keys(in_document), names.iter().map(String::as_str).collect());
    let contracts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../events/contracts");
    for name in &names {
        let message = &in_document[name];
        let mut schema = resolve(&document, &message["payload"]).clone();
        // AsyncAPI's schemas extend draft 7. The contracts use draft 2020-12 and must mean the same in both.
        let file = fs::read_to_string(contracts.join(format!("{name}.example.json"))).unwrap();
        let example: Value = serde_json::from_str(&file).unwrap();
        for draft in
            ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
        {
            schema["$schema"] = draft.into();
            let validator = jsonschema::options().should_validate_formats(true).build(&schema).unwrap();
            if let Err(error) = validator.validate(&example) {
                panic!("{name}: {error} at {}", error.instance_path());
            }
            let mut other = example.clone();
            other["dataschema"] = "urn:shop:Other:1".into();
            assert!(!validator.is_valid(&other), "{name} accepts an event with another schema");
        }
        assert_eq!(message["examples"][0]["payload"], example);
    }
}

#[test]
fn channels_are_exactly_the_routing_keys_and_the_queues() {
    let document = document::generate();
    let bound = SHOP_QUEUES.iter().flat_map(|queue| queue.keys.iter().copied());
    let queues = SHOP_QUEUES.iter().map(|queue| queue.name);
    assert_eq!(
        keys(&document["channels"]),
        bound.chain(FOR_EXTERNAL_CONSUMERS).chain(queues).collect::<BTreeSet<_>>()
    );
    for (name, channel) in document["channels"].as_object().unwrap() {
        assert_eq!(channel["address"], *name);
        assert!(!keys(&channel["messages"]).is_empty(), "the channel {name} has no messages");
    }
    for Queue { name: queue, keys } in SHOP_QUEUES {
        for key in keys {
            let listed = document["channels"][key]["x-queues"].as_array().unwrap();
            assert!(listed.contains(&queue.into()), "{key}: {listed:?}");
        }
    }
}

#[test]
fn each_event_has_one_sender_and_each_queue_one_receiver() {
    let document = document::generate();
    let (mut sent, mut received) = (BTreeSet::new(), vec![]);
    for operation in document["operations"].as_object().unwrap().values() {
        let channel = resolve(&document, &operation["channel"]);
        for reference in operation["messages"].as_array().unwrap() {
            // The channel refers to the message, and the message exists.
            let message = resolve(&document, resolve(&document, reference));
            let event_type = message["name"].as_str().unwrap();
            if operation["action"] == "send" {
                assert_eq!(channel["address"], routing_key(event_type));
                assert!(message.get("x-deprecated").is_none(), "{event_type}: an old version is sent");
                assert!(sent.insert(event_type), "{event_type} has two senders");
            } else {
                received.push((event_type, message.get("x-deprecated").is_some()));
            }
        }
    }
    // No service writes its first version, and old events may be replayed.
    assert!(received.contains(&("OrderCancelled", true)), "{received:?}");
    let known = document::messages();
    assert_eq!(sent, known.iter().map(|message| message.event_type.as_str()).collect());
    let services: BTreeSet<_> =
        SHOP_QUEUES.iter().map(|queue| queue.name.trim_end_matches(".events").to_owned()).collect();
    assert_eq!(services_that(&document, "receive"), services);
    // Each sender has a queue too.
    assert!(services_that(&document, "send").is_subset(&services), "{:?}", services_that(&document, "send"));
}
