//! Published events stay readable, and no change of a schema breaks its readers.
//!
//! `contracts/` has two files for each version of each event: its schema, and an example as it was first published.
//! After an additive change, `UPDATE_CONTRACTS=1 cargo test -p events --test contracts` writes the schema
//! again. A change that breaks readers is never written: it needs a new version, beside the old one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed precondition ends a test")]

mod contract;

use std::{collections::BTreeSet, fs, path::PathBuf, sync::Once};

use events::{Rejection, decode};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::contract::Contract;

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

fn is_update() -> bool {
    std::env::var_os("UPDATE_CONTRACTS").is_some()
}

fn text(contract: &Contract) -> String {
    format!("{}\n", serde_json::to_string_pretty(&contract.schema).unwrap())
}

/// Writes the schemas of new contracts, if that is wanted, before any test looks for them: tests run at the same time.
fn write_new_schemas() {
    static WRITTEN: Once = Once::new();
    WRITTEN.call_once(|| {
        for contract in Contract::all() {
            let path = file(&contract, "schema");
            if is_update() && !path.exists() {
                fs::write(path, text(&contract)).unwrap();
            }
        }
    });
}

/// Keywords that describe a schema and change nothing for its readers.
const DESCRIPTIONS: [&str; 4] = ["$schema", "title", "description", "examples"];

/// Lists the changes from `old` to `new` that could break a reader. `at` is the path of the two schemas.
fn breaking_changes(at: &str, old: &Value, new: &Value) -> Vec<String> {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return if old == new { vec![] } else { vec![format!("{at}: {old} became {new}")] };
    };
    let mut found = vec![];
    let keywords: BTreeSet<_> =
        old.keys().chain(new.keys()).filter(|key| !DESCRIPTIONS.contains(&key.as_str())).collect();
    for keyword in keywords {
        let (was, is) = (old.get(keyword), new.get(keyword));
        match (keyword.as_str(), was, is) {
            ("properties", Some(Value::Object(was)), Some(Value::Object(is))) => {
                for (name, was) in was {
                    match is.get(name) {
                        Some(is) => found.extend(breaking_changes(&format!("{at}.{name}"), was, is)),
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
            ("items", Some(was), Some(is)) => found.extend(breaking_changes(&format!("{at}[]"), was, is)),
            (_, was, is) if was == is => {}
            (keyword, was, is) => found.push(format!("{at}: {keyword} was {was:?} and is {is:?}")),
        }
    }
    found
}

#[test]
fn no_schema_change_breaks_readers_and_every_schema_is_committed() {
    write_new_schemas();
    for contract in Contract::all() {
        let (path, text) = (file(&contract, "schema"), text(&contract));
        let breaking = breaking_changes("", &read(&contract, "schema"), &contract.schema);
        let name = format!("{} version {}", contract.event_type, contract.version);
        assert!(
            breaking.is_empty(),
            "the change of {name} breaks its readers; add a new version instead:\n{}",
            breaking.join("\n")
        );
        if is_update() {
            fs::write(&path, &text).unwrap();
        }
        assert!(
            fs::read_to_string(&path).unwrap() == text,
            "{name} has changed without breaking readers: run `UPDATE_CONTRACTS=1 cargo test -p events --test \
             contracts`"
        );
    }
}

#[test]
fn no_contract_was_removed() {
    write_new_schemas();
    let known: BTreeSet<_> =
        Contract::all().iter().flat_map(|one| [file(one, "schema"), file(one, "example")]).collect();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("contracts");
    let committed: BTreeSet<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(committed, known);
}

#[test]
fn first_published_examples_decode_also_with_added_fields() {
    for contract in Contract::all() {
        let example = read(&contract, "example");
        let schema = jsonschema::validator_for(&contract.schema).unwrap();
        if let Err(error) = schema.validate(&example) {
            panic!("{} {}: {error} at {}", contract.event_type, contract.version, error.instance_path());
        }
        let mut extended = example.clone();
        extended["added"] = json!("later");
        extended["data"]["added"] = json!({ "deeper": [1] });
        assert!(schema.is_valid(&extended));
        for event in [&example, &extended] {
            let decoded = decode(event.to_string().as_bytes(), event["id"].as_str(), None).unwrap();
            assert_eq!(decoded.event_type, contract.event_type);
        }
        let mut contradiction = example;
        contradiction["subject"] = json!(Uuid::new_v4());
        let rejected = decode(contradiction.to_string().as_bytes(), contradiction["id"].as_str(), None);
        assert!(matches!(rejected, Err(Rejection::Inconsistent(_))), "its body names another subject");
    }
}

/// An example without a field, or with an empty list, would not show that the field is read. A field that may be missing
/// was added later: the example was published without it.
#[test]
fn examples_have_every_required_field_and_no_empty_list() {
    fn find_missing(at: &str, schema: &Value, example: &Value, missing: &mut Vec<String>) {
        let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
        for (name, schema) in schema["properties"].as_object().unwrap_or(&Map::new()) {
            let at = format!("{at}.{name}");
            match example.get(name) {
                Some(example) => find_missing(&at, schema, example, missing),
                None if required.contains(&json!(name)) => missing.push(at),
                None => {}
            }
        }
        if let Some(schema) = schema.get("items") {
            match example.get(0) {
                Some(first) => find_missing(&format!("{at}[]"), schema, first, missing),
                None => missing.push(format!("{at}[]")),
            }
        }
    }
    for contract in Contract::all() {
        let mut missing = vec![];
        find_missing("", &contract.schema, &read(&contract, "example"), &mut missing);
        assert!(missing.is_empty(), "{} {}: {missing:?}", contract.event_type, contract.version);
    }
}

/// The paths of the texts and lists of a schema, each with its bound.
fn bounds(at: &str, schema: &Value, found: &mut Vec<(String, Option<u64>)>) {
    for (name, schema) in schema["properties"].as_object().unwrap_or(&Map::new()) {
        bounds(&format!("{at}/{name}"), schema, found);
    }
    if schema["type"] == "array" {
        found.push((at.to_owned(), schema["maxItems"].as_u64()));
        bounds(&format!("{at}/0"), &schema["items"], found);
    } else if schema["type"] == "string" && schema["format"].is_null() && schema["examples"].is_null() {
        found.push((at.to_owned(), schema["maxLength"].as_u64()));
    }
}

/// A text from outside is quoted in an event of ours, which must not become too large to publish.
#[test]
fn every_text_and_list_of_a_body_has_a_bound_that_decoding_checks() {
    for contract in Contract::all() {
        let mut found = vec![];
        bounds("/data", &contract.schema["properties"]["data"], &mut found);
        for (path, bound) in found {
            let bound = bound.unwrap_or_else(|| panic!("{} {path} has no bound", contract.event_type));
            let mut event = read(&contract, "example");
            let id = event["id"].as_str().unwrap().to_owned();
            let field = event.pointer_mut(&path).unwrap();
            let longer = usize::try_from(bound).unwrap() + 1;
            *field = if field.is_array() {
                json!(vec![field[0].clone(); longer])
            } else {
                // Characters count and not bytes: each of these has two.
                json!("é".repeat(longer))
            };
            let problem = decode(event.to_string().as_bytes(), Some(&id), None).unwrap_err();
            let expected = format!("is longer than {bound}: {longer}");
            assert!(problem.to_string().ends_with(&expected), "{} {path}: {problem}", contract.event_type);
        }
    }
}

#[test]
fn each_kind_of_breaking_change_is_found_and_an_addition_is_not() {
    let contract = &Contract::all()[0];
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut new = contract.schema.clone();
        change(&mut new);
        breaking_changes("", &contract.schema, &new)
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
        new["description"] = json!("another description");
    });
    assert!(added.is_empty(), "{added:?}");
}
