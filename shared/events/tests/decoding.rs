//! Decoding messages. They are input from outside: each invalid one must be rejected with its reason, without a panic.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed precondition ends a test")]

use events::{
    Body, Cause, Event, Line, Money, NewEvent, OrderCancelled, OrderCreated, Origin, Rejection, TraceContext,
    decode,
};
use serde_json::{Value, json};
use uuid::Uuid;

fn order() -> OrderCreated {
    OrderCreated {
        order_id: Uuid::now_v7(),
        customer_id: Uuid::new_v4(),
        lines: vec![
            Line { sku: "TEA-001".into(), quantity: 2, unit_price: 625 },
            Line { sku: "MUG-001".into(), quantity: 1, unit_price: 1450 },
        ],
        total: Money { amount: 2700, currency: "EUR".into() },
    }
}

/// The envelope of a valid event. The tests change one thing in it.
fn envelope() -> Value {
    let order = order();
    let event = NewEvent::of(order.order_id, 1, &TraceContext::root(), &order).unwrap();
    serde_json::from_str(&event.payload).unwrap()
}

/// A message as a broker delivers it.
struct Message {
    message_id: Option<String>,
    traceparent: Option<&'static str>,
    body: Vec<u8>,
}

impl Message {
    fn decode(&self) -> Result<Event, Rejection> {
        decode(&self.body, self.message_id.as_deref(), self.traceparent)
    }
}

fn message(envelope: &Value) -> Message {
    Message {
        message_id: envelope["id"].as_str().map(String::from),
        traceparent: None,
        body: envelope.to_string().into_bytes(),
    }
}

fn with(pointer: &str, value: Value) -> Message {
    let mut envelope = envelope();
    *envelope.pointer_mut(pointer).unwrap() = value;
    message(&envelope)
}

fn without(object: &str, key: &str) -> Message {
    let mut envelope = envelope();
    let id = envelope["id"].as_str().map(String::from);
    envelope.pointer_mut(object).unwrap().as_object_mut().unwrap().remove(key).unwrap();
    Message { message_id: id, ..message(&envelope) }
}

#[test]
fn valid_message_is_decoded_and_unknown_fields_are_ignored() {
    let mut envelope = envelope();
    envelope["somethingNew"] = json!({"a": 1});
    envelope["data"]["giftWrap"] = json!(true);
    envelope["data"]["lines"][0]["colour"] = json!("green");
    let event = message(&envelope).decode().unwrap();
    assert_eq!((event.event_type, event.aggregate_version), ("OrderCreated", 1));
    assert_eq!(event.id.to_string(), envelope["id"].as_str().unwrap());
    let Body::OrderCreated(body) = event.body else { panic!("expected an OrderCreated") };
    assert_eq!(body.total.amount, 2700);
}

#[test]
fn each_kind_of_invalid_message_is_rejected_with_its_reason() {
    let valid = envelope();
    let text = valid.to_string();
    let raw = |body: &[u8]| Message { body: body.to_vec(), ..message(&valid) };
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let cases: Vec<(&str, Message, &str)> = vec![
        ("empty", raw(b""), "malformed"),
        ("not JSON", raw(b"hello"), "malformed"),
        ("truncated", raw(&text.as_bytes()[..text.len() - 5]), "malformed"),
        ("two documents", raw(format!("{text}{text}").as_bytes()), "malformed"),
        ("invalid UTF-8", raw(b"{\"id\":\"\xff\xfe\"}"), "malformed"),
        ("too deep", raw(deep.as_bytes()), "malformed"),
        ("an array", raw(b"[]"), "malformed"),
        ("null", raw(b"null"), "malformed"),
        ("no id", without("", "id"), "malformed"),
        ("id is no UUID", with("/id", json!("42")), "malformed"),
        ("nil id", with("/id", json!(Uuid::nil())), "malformed"),
        ("no message_id", Message { message_id: None, ..message(&valid) }, "id-mismatch"),
        ("another message_id", Message { message_id: Some("x".into()), ..message(&valid) }, "id-mismatch"),
        ("another specversion", with("/specversion", json!("2.0")), "malformed"),
        ("a year before 1, in UTC", with("/time", json!("0000-01-01T00:00:00+23:59")), "inconsistent"),
        ("a year after 9999, in UTC", with("/time", json!("9999-12-31T23:59:59-23:59")), "inconsistent"),
        ("unknown type", with("/type", json!("OrderSung")), "unknown-type"),
        ("unknown version", with("/dataschema", json!("urn:shop:OrderCreated:2")), "unknown-schema"),
        ("no schema", without("", "dataschema"), "malformed"),
        ("sequence 0", with("/sequence", json!(0)), "malformed"),
        ("sequence is text", with("/sequence", json!("1")), "malformed"),
        ("no data", without("", "data"), "malformed"),
        ("data is null", with("/data", json!(null)), "malformed"),
        ("missing field", without("/data", "customerId"), "malformed"),
        ("quantity is text", with("/data/lines/0/quantity", json!("2")), "malformed"),
        ("quantity does not fit", with("/data/lines/0/quantity", json!(3_000_000_000_i64)), "malformed"),
        ("negative quantity", with("/data/lines/0/quantity", json!(-2)), "inconsistent"),
        ("quantity 0", with("/data/lines/0/quantity", json!(0)), "inconsistent"),
        ("negative price", with("/data/lines/0/unitPrice", json!(-625)), "inconsistent"),
        ("overflowing sum", with("/data/lines/0/unitPrice", json!(i64::MAX)), "inconsistent"),
        ("sum is not the total", with("/data/total/amount", json!(2701)), "inconsistent"),
        ("no lines", with("/data/lines", json!([])), "inconsistent"),
        ("another order", with("/data/orderId", json!(Uuid::now_v7())), "inconsistent"),
        ("the source of another", with("/source", json!("/billing")), "forged"),
        ("time is no time", with("/time", json!("yesterday")), "malformed"),
    ];
    for (name, message, reason) in cases {
        match message.decode() {
            Err(rejection) => assert_eq!(rejection.reason(), reason, "{name}: {rejection}"),
            Ok(event) => panic!("{name}: decoded as {event:?}"),
        }
    }
}

#[test]
fn event_is_believed_from_its_service_from_the_own_login_and_from_whoever_may_use_its_key() {
    let event = message(&envelope()).decode().unwrap();
    let (created, other) = (Some("order.created"), Some("stock.reserved"));
    for (user, routing_key, is_believed) in [
        (Some("orders"), created, true),
        (Some("orders"), None, true),
        (Some("billing"), None, true),
        (Some("inventory"), created, false),
        (Some("inventory"), None, false),
        (Some("orders"), other, false),
        (None, created, true),
        (None, other, false),
        (None, None, false),
    ] {
        let checked = Origin { user, own_login: "billing", routing_key }.check(&event);
        assert_eq!(checked.is_ok(), is_believed, "{user:?} {routing_key:?}: {checked:?}");
    }
}

#[test]
fn invalid_traceparent_starts_a_new_trace() {
    let event = Message { traceparent: Some("nonsense"), ..message(&envelope()) }.decode().unwrap();
    assert_eq!(event.trace.trace_id().len(), 32);
}

#[test]
fn rejection_quotes_at_most_100_characters_of_the_message() {
    let Err(Rejection::UnknownType(name)) = with("/type", json!("x".repeat(1_000_000))).decode() else {
        panic!("an unknown type was decoded");
    };
    assert_eq!(name.len(), 100);
}

/// Decodes an `OrderCancelled` of this version.
fn cancellation(version: i16, data: &Value) -> Result<OrderCancelled, Rejection> {
    let mut envelope = envelope();
    envelope["type"] = json!("OrderCancelled");
    envelope["dataschema"] = json!(format!("urn:shop:OrderCancelled:{version}"));
    envelope["subject"] = data["orderId"].clone();
    envelope["data"] = data.clone();
    match message(&envelope).decode()?.body {
        Body::OrderCancelled(body) => Ok(body),
        other => panic!("{other:?}"),
    }
}

#[test]
fn both_versions_of_a_cancellation_decode_to_the_newest_body() {
    let order = Uuid::now_v7();
    let old = cancellation(1, &json!({ "orderId": order, "reason": "no more tea" })).unwrap();
    assert_eq!((old.order_id, old.cause, old.detail.as_str()), (order, Cause::Customer, "no more tea"));
    let new = json!({ "orderId": order, "cause": "timedOut", "detail": "billing is silent" });
    assert_eq!(cancellation(2, &new).unwrap().cause, Cause::TimedOut);
}

#[test]
fn unknown_cause_decodes_as_other_and_unknown_version_is_rejected() {
    let newer = json!({ "orderId": Uuid::now_v7(), "cause": "meteorite", "detail": "the warehouse is gone" });
    assert_eq!(cancellation(2, &newer).unwrap().cause, Cause::Other);
    assert_eq!(cancellation(3, &newer), Err(Rejection::UnknownSchema("urn:shop:OrderCancelled:3".into())));
}
