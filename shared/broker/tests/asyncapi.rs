//! `docs/asyncapi.json` is what the contracts and the topology say. After a change,
//! `UPDATE_CONTRACTS=1 cargo test --release -p broker --test asyncapi` writes it anew.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use std::{collections::BTreeSet, fs, path::Path};

use broker::{
    asyncapi,
    topology::{HOUSE, Queue},
};
use events::{Contract, routing_key};
use serde_json::Value;

fn document() -> Value {
    asyncapi::document().unwrap()
}

fn keys(object: &Value) -> BTreeSet<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

/// The services that a document has operations of, by what they do.
fn who(document: &Value, action: &str) -> BTreeSet<String> {
    let operations = document["operations"].as_object().unwrap().values();
    let of_this = operations.filter(|operation| operation["action"] == action);
    of_this.map(|operation| operation["x-service"].as_str().unwrap().to_owned()).collect()
}

/// What a reference in the document leads to.
fn follow<'document>(document: &'document Value, reference: &Value) -> &'document Value {
    let target = reference["$ref"].as_str().and_then(|target| target.strip_prefix('#')).unwrap();
    document.pointer(target).unwrap_or_else(|| panic!("{target} leads nowhere"))
}

#[test]
fn the_committed_document_is_the_one_that_is_generated() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/asyncapi.json");
    let generated = format!("{}\n", serde_json::to_string_pretty(&document()).unwrap());
    if std::env::var_os("UPDATE_CONTRACTS").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    assert!(
        fs::read_to_string(&path).is_ok_and(|committed| committed == generated),
        "docs/asyncapi.json is not what the code says: UPDATE_CONTRACTS=1 cargo test --release -p broker --test asyncapi"
    );
}

#[test]
fn every_contract_is_a_message_and_its_example_is_what_the_message_asks_for() {
    let document = document();
    let names: BTreeSet<_> =
        Contract::all().iter().map(|one| format!("{}.{}", one.event_type, one.version)).collect();
    let in_document = &document["components"]["messages"];
    assert_eq!(keys(in_document), names.iter().map(String::as_str).collect());
    let contracts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../events/contracts");
    for name in &names {
        let message = &in_document[name];
        let mut schema = follow(&document, &message["payload"]).clone();
        // AsyncAPI's schemas are those of draft 7, and more. Ours have to mean the same in both.
        let file = fs::read_to_string(contracts.join(format!("{name}.example.json"))).unwrap();
        let example: Value = serde_json::from_str(&file).unwrap();
        for draft in
            ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
        {
            schema["$schema"] = draft.into();
            let validator =
                testbed::jsonschema::options().should_validate_formats(true).build(&schema).unwrap();
            if let Err(error) = validator.validate(&example) {
                panic!("{name}: {error} at {}", error.instance_path());
            }
            let mut other = example.clone();
            other["dataschema"] = "urn:shop:Other:1".into();
            assert!(!validator.is_valid(&other), "{name} takes anything");
        }
        assert_eq!(message["examples"][0]["payload"], example);
    }
}

#[test]
fn every_key_that_is_bound_has_a_channel_and_every_channel_is_bound_or_a_queue() {
    let document = document();
    let bound: BTreeSet<_> = HOUSE.iter().flat_map(|queue| queue.keys.iter().copied()).collect();
    let queues: BTreeSet<_> = HOUSE.iter().map(|queue| queue.name).collect();
    assert_eq!(keys(&document["channels"]), bound.union(&queues).copied().collect());
    for (name, channel) in document["channels"].as_object().unwrap() {
        assert_eq!(channel["address"], *name);
        assert!(!keys(&channel["messages"]).is_empty(), "nothing is ever said in {name}");
    }
    for Queue { name: queue, keys } in HOUSE {
        for key in keys {
            let listed = document["channels"][key]["x-queues"].as_array().unwrap();
            assert!(listed.contains(&queue.into()), "{key}: {listed:?}");
        }
    }
}

#[test]
fn every_event_has_one_sender_and_every_queue_one_receiver_and_both_are_services() {
    let document = document();
    let mut sent = BTreeSet::new();
    for operation in document["operations"].as_object().unwrap().values() {
        let channel = follow(&document, &operation["channel"]);
        for reference in operation["messages"].as_array().unwrap() {
            // The channel has the message, and the message is there.
            let message = follow(&document, follow(&document, reference));
            let event_type = message["name"].as_str().unwrap();
            if operation["action"] == "send" {
                assert_eq!(channel["address"], routing_key(event_type));
                assert!(message.get("x-deprecated").is_none(), "{event_type}: an old version is sent");
                assert!(sent.insert(event_type), "{event_type} has two senders");
            }
        }
    }
    let written: BTreeSet<_> = Contract::all().iter().map(|contract| contract.event_type).collect();
    assert_eq!(sent, written);
    let services: BTreeSet<_> =
        HOUSE.iter().map(|queue| queue.name.trim_end_matches(".events").to_owned()).collect();
    assert_eq!(who(&document, "receive"), services);
    // Whoever says something has a queue too.
    assert!(who(&document, "send").is_subset(&services), "{:?}", who(&document, "send"));
}

#[test]
fn both_versions_of_a_cancellation_are_read_and_the_old_one_is_marked() {
    let document = document();
    let [old, new] = ["OrderCancelled.1", "OrderCancelled.2"];
    assert_eq!(keys(&document["channels"]["order.cancelled"]["messages"]), [old, new].into());
    assert_eq!(document["components"]["schemas"][old]["deprecated"], true);
    assert_eq!(document["components"]["messages"][old]["x-deprecated"], true);
    assert!(document["components"]["schemas"][new].get("deprecated").is_none());
}
