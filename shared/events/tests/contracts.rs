//! What was published once stays readable, and who reads it today can read it tomorrow.
//!
//! `contracts/` has two files for each version of each event: its schema, and an example as it was first published. After
//! an additive change, `UPDATE_CONTRACTS=1 cargo test -p events --test contracts` writes the schema anew. A change that
//! breaks readers is never written: it wants a new version, beside the old one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use std::{collections::BTreeSet, fs, path::PathBuf};

use events::{Contract, decode, transport::Incoming};
use serde_json::{Map, Value, json};

fn file(contract: &Contract, kind: &str) -> PathBuf {
    let name = format!("{}.{}.{kind}.json", contract.event_type, contract.version);
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("contracts").join(name)
}

fn read(contract: &Contract, kind: &str) -> Value {
    let path = file(contract, kind);
    serde_json::from_str(
        &fs::read_to_string(&path).unwrap_or_else(|_| panic!("{} is missing", path.display())),
    )
    .unwrap()
}

/// Keywords that tell people something, and readers nothing.
const WORDS: [&str; 4] = ["$schema", "title", "description", "examples"];

/// Everything that a reader of the one could trip over in the other.
fn breaks(at: &str, old: &Value, new: &Value) -> Vec<String> {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return if old == new { vec![] } else { vec![format!("{at}: {old} became {new}")] };
    };
    let mut found = vec![];
    let keywords: BTreeSet<_> =
        old.keys().chain(new.keys()).filter(|key| !WORDS.contains(&key.as_str())).collect();
    for keyword in keywords {
        let (was, is) = (old.get(keyword), new.get(keyword));
        match (keyword.as_str(), was, is) {
            ("properties", Some(Value::Object(was)), Some(Value::Object(is))) => {
                for (name, was) in was {
                    match is.get(name) {
                        Some(is) => found.extend(breaks(&format!("{at}.{name}"), was, is)),
                        None => found.push(format!("{at}.{name} was removed")),
                    }
                }
            }
            ("required", _, _) => {
                let names = |list: Option<&Value>| -> BTreeSet<String> {
                    list.and_then(|list| serde_json::from_value(list.clone()).ok()).unwrap_or_default()
                };
                let (was, is) = (names(was), names(is));
                found.extend(was.difference(&is).map(|name| format!("{at}.{name} may be missing now")));
                found.extend(
                    is.difference(&was)
                        .map(|name| format!("{at}.{name} is required, and old events lack it")),
                );
            }
            ("items", Some(was), Some(is)) => found.extend(breaks(&format!("{at}[]"), was, is)),
            (_, was, is) if was == is => {}
            (keyword, was, is) => found.push(format!("{at}: {keyword} was {was:?} and is {is:?}")),
        }
    }
    found
}

#[test]
fn no_contract_was_changed_in_a_way_that_breaks_a_reader_and_all_are_written_down() {
    let update = std::env::var_os("UPDATE_CONTRACTS").is_some();
    for contract in Contract::all() {
        let path = file(&contract, "schema");
        let text = format!("{}\n", serde_json::to_string_pretty(&contract.schema).unwrap());
        if update && !path.exists() {
            fs::write(&path, &text).unwrap();
        }
        let broken = breaks("", &read(&contract, "schema"), &contract.schema);
        let name = format!("{} version {}", contract.event_type, contract.version);
        assert!(
            broken.is_empty(),
            "{name} would break its readers; make it a new version:\n{}",
            broken.join("\n")
        );
        if update {
            fs::write(&path, &text).unwrap();
        }
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            text,
            "{name} has changed, and breaks nobody: UPDATE_CONTRACTS=1 cargo test -p events --test contracts"
        );
    }
}

#[test]
fn no_contract_was_taken_away() {
    let known: BTreeSet<_> =
        Contract::all().iter().flat_map(|one| [file(one, "schema"), file(one, "example")]).collect();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("contracts");
    let there: BTreeSet<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(there, known);
}

#[test]
fn what_was_first_published_is_read_today_and_so_is_what_has_more_in_it() {
    for contract in Contract::all() {
        let example = read(&contract, "example");
        let schema = testbed::jsonschema::validator_for(&contract.schema).unwrap();
        if let Err(error) = schema.validate(&example) {
            panic!("{} {}: {error} at {}", contract.event_type, contract.version, error.instance_path());
        }
        let mut with_more = example.clone();
        with_more["added"] = json!("later");
        with_more["data"]["added"] = json!({ "deeper": [1] });
        assert!(schema.is_valid(&with_more));
        for event in [example, with_more] {
            let message = Incoming {
                message_id: event["id"].as_str().map(String::from),
                traceparent: None,
                body: event.to_string().into_bytes(),
            };
            let read = decode(&message).unwrap();
            assert_eq!(read.event_type, contract.event_type);
        }
    }
}

/// The examples have every field that the schema names: a field that is missing there could be removed unnoticed by the
/// test above.
#[test]
fn the_examples_leave_nothing_out() {
    fn names(at: &str, schema: &Value, example: &Value, missing: &mut Vec<String>) {
        for (name, schema) in schema["properties"].as_object().unwrap_or(&Map::new()) {
            let at = format!("{at}.{name}");
            match example.get(name) {
                Some(example) => names(&at, schema, example, missing),
                None => missing.push(at),
            }
        }
        if let (Some(schema), Some(first)) = (schema.get("items"), example.get(0)) {
            names(&format!("{at}[]"), schema, first, missing);
        }
    }
    for contract in Contract::all() {
        let mut missing = vec![];
        names("", &contract.schema, &read(&contract, "example"), &mut missing);
        assert!(missing.is_empty(), "{} {}: {missing:?}", contract.event_type, contract.version);
    }
}

#[test]
fn every_kind_of_breaking_change_is_seen_and_an_addition_is_none() {
    let contract = Contract::all().remove(0);
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut new = contract.schema.clone();
        change(&mut new);
        breaks("", &contract.schema, &new)
    };
    let removed = changed(&|new| {
        new["properties"]["data"]["properties"].as_object_mut().unwrap().remove("customerId").unwrap();
    });
    assert!(removed.iter().any(|text| text == ".data.customerId was removed"), "{removed:?}");
    let renamed = changed(&|new| {
        let properties = new["properties"]["data"]["properties"].as_object_mut().unwrap();
        let customer = properties.remove("customerId").unwrap();
        properties.insert("customer".into(), customer);
    });
    assert_eq!(renamed, [".data.customerId was removed"]);
    let required = changed(&|new| {
        new["properties"]["data"]["properties"]["giftWrap"] = json!({ "type": "boolean" });
        new["properties"]["data"]["required"].as_array_mut().unwrap().push(json!("giftWrap"));
    });
    assert_eq!(required, [".data.giftWrap is required, and old events lack it"]);
    let optional = changed(&|new| {
        new["properties"]["data"]["required"].as_array_mut().unwrap().retain(|name| name != "customerId");
    });
    assert_eq!(optional, [".data.customerId may be missing now"]);
    let retyped = changed(&|new| {
        new["properties"]["data"]["properties"]["lines"]["items"]["properties"]["quantity"]["type"] =
            json!("string");
    });
    assert_eq!(retyped.len(), 1, "{retyped:?}");
    let tightened = changed(&|new| new["properties"]["data"]["properties"]["lines"]["minItems"] = json!(2));
    assert_eq!(tightened.len(), 1, "{tightened:?}");

    let added = changed(&|new| {
        new["properties"]["data"]["properties"]["giftWrap"] = json!({ "type": "boolean" });
        new["description"] = json!("said better");
    });
    assert!(added.is_empty(), "{added:?}");
}
