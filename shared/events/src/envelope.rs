use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::TraceContext;

/// An event as it is sent: CloudEvents 1.0 attributes in JSON ("structured mode").
///
/// <https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md>
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Envelope<D> {
    /// Always `1.0`.
    #[schemars(extend("const" = "1.0"))]
    pub specversion: String,
    /// The event's id, the same at every attempt to publish. Consumers recognize duplicates by it.
    pub id: Uuid,
    /// The service that wrote the event, for example `/orders`.
    pub source: String,
    /// The event's name, for example `OrderCreated`.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The id of the aggregate that the event is about.
    pub subject: Uuid,
    /// When the event happened, by the writer's clock. For people: nothing may be ordered or expired by it.
    #[serde(with = "time::serde::rfc3339")]
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub time: OffsetDateTime,
    /// Always `application/json`.
    #[schemars(extend("const" = "application/json"))]
    pub datacontenttype: String,
    /// The schema of `data` and its version, for example `urn:shop:OrderCreated:1`.
    pub dataschema: String,
    /// The aggregate's version after this event: 1, 2, 3 … without gaps.
    #[schemars(range(min = 1))]
    pub sequence: i32,
    /// W3C Trace Context of the request that caused the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The event's body.
    pub data: D,
}

/// The `dataschema` of one version of one event.
pub(crate) fn schema_name(event_type: &str, version: i16) -> String {
    format!("urn:shop:{event_type}:{version}")
}

/// The body of one event in one version: its name, its version and its consistency rules.
pub trait Data: Serialize + DeserializeOwned + JsonSchema {
    /// The event's name: the envelope's `type`.
    const TYPE: &'static str;
    /// The version of this body's schema.
    const VERSION: i16 = 1;
    /// The service that publishes it: the envelope's `source`.
    const SOURCE: &'static str;
    /// What its `subject` identifies.
    const AGGREGATE: &'static str;

    /// Checks what a JSON Schema cannot express: a body can be well-formed and still contradict itself. The error names the
    /// contradiction.
    fn check(&self, subject: Uuid) -> Result<(), String>;
}

/// Checks that the id in the body is the envelope's `subject`.
pub(crate) fn check_subject(name: &str, id: Uuid, subject: Uuid) -> Result<(), String> {
    if id == subject { Ok(()) } else { Err(format!("{name} {id} is not the subject {subject}")) }
}

/// The most characters of a text for people. A text from outside goes into an event of ours: without a bound, that event
/// could be too large to publish, and what it undoes would stay as it is.
pub(crate) const MAX_TEXT: usize = 500;

/// Checks that a text or a list is not longer than its schema says.
pub(crate) fn check_length(name: &str, length: usize, longest: usize) -> Result<(), String> {
    if length <= longest { Ok(()) } else { Err(format!("{name} is longer than {longest}: {length}")) }
}

/// An event that is about to be written: the columns of an outbox row.
///
/// The body is rendered here, once, when the event happens. The relay publishes these bytes later and never reads the
/// business tables, which may have changed by then.
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// [Derived](derived_id) from the aggregate, its version and the event's type.
    pub event_id: Uuid,
    /// The kind of aggregate, for example `order`.
    pub aggregate_type: &'static str,
    pub aggregate_id: Uuid,
    /// The aggregate's version after this event.
    pub aggregate_version: i32,
    /// The [`lane`] of the aggregate.
    pub lane: i16,
    pub event_type: &'static str,
    /// The version of the body's schema.
    pub schema_version: i16,
    /// The whole envelope, as JSON text.
    pub payload: String,
    /// The message's headers, as a JSON object.
    pub headers: serde_json::Value,
}

impl NewEvent {
    /// Renders a body into an envelope and its outbox row. `version` is the aggregate's after this event. It never
    /// fails for the bodies of this crate: all of them can be serialized as JSON.
    pub fn of<D: Data>(
        aggregate_id: Uuid,
        version: i32,
        trace: &TraceContext,
        data: &D,
    ) -> Result<Self, serde_json::Error> {
        let event_id = derived_id(aggregate_id, &format!("{}.{version}", D::TYPE));
        let traceparent = trace.to_string();
        let envelope = Envelope {
            specversion: "1.0".into(),
            id: event_id,
            source: D::SOURCE.into(),
            event_type: D::TYPE.into(),
            subject: aggregate_id,
            time: OffsetDateTime::now_utc(),
            datacontenttype: "application/json".into(),
            dataschema: schema_name(D::TYPE, D::VERSION),
            sequence: version,
            traceparent: Some(traceparent.clone()),
            data,
        };
        Ok(Self {
            event_id,
            aggregate_type: D::AGGREGATE,
            aggregate_id,
            aggregate_version: version,
            lane: lane(aggregate_id),
            event_type: D::TYPE,
            schema_version: D::VERSION,
            payload: serde_json::to_string(&envelope)?,
            headers: serde_json::json!({ "traceparent": traceparent }),
        })
    }
}

/// The id of something that `cause` leads to: a UUIDv8, the same whenever the same `cause` leads to the same `name`.
///
/// A service whose database is restored receives events again that it has answered, and answers them once more. With random
/// ids other services would apply these answers a second time. Derived ids are the same, so their inboxes drop them. This
/// replaces no inbox: whatever has no id, a stock for example, would still change twice.
///
/// The first 48 bits are those of `cause`: the time, if it is a UUIDv7. Random ones would touch a page of each index for each
/// event. The others are those of a UUIDv5.
pub fn derived_id(cause: Uuid, name: &str) -> Uuid {
    let mut bytes = Uuid::new_v5(&cause, name.as_bytes()).into_bytes();
    bytes[..6].copy_from_slice(&cause.as_bytes()[..6]);
    Uuid::new_v8(bytes)
}

/// The number of lanes. It must not change: an event keeps the lane that it was written with, so with another number an
/// aggregate's pending events would be in two lanes, and two relays could publish them in the wrong order.
pub const LANES: i16 = 16;

/// The lane of an aggregate: FNV-1a over the bytes of its id.
///
/// Computed here and stored with the event, because PostgreSQL's hash functions may change between versions. A hash,
/// because the low bits of an id that a client made need not be random.
pub fn lane(aggregate_id: Uuid) -> i16 {
    let hash = aggregate_id.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The high half is mixed best. 0..16 fits an i16.
    i16::try_from((hash >> 32) % LANES.unsigned_abs() as u64).unwrap_or(0)
}

/// The routing key under which an event type is published: `OrderCreated` becomes `order.created`.
pub fn routing_key(event_type: &str) -> String {
    let mut key = String::with_capacity(event_type.len() + 2);
    for letter in event_type.chars() {
        if letter.is_uppercase() && !key.is_empty() {
            key.push('.');
        }
        key.extend(letter.to_lowercase());
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routing_key_is_the_event_type_in_dotted_lower_case() {
        assert_eq!(routing_key("OrderCreated"), "order.created");
        assert_eq!(routing_key("StockReleased"), "stock.released");
    }

    #[test]
    fn derived_id_depends_on_cause_and_name_and_keeps_the_time_of_its_cause() {
        let cause = Uuid::from_u128(0x0190_5a3e_7b1c_7000_8000_0000_0000_0001);
        let id = derived_id(cause, "StockReserved.1");
        assert_eq!(id, derived_id(cause, "StockReserved.1"));
        assert_eq!(id.get_version_num(), 8);
        assert_eq!(id.as_bytes()[..6], cause.as_bytes()[..6]);
        assert_ne!(id, derived_id(cause, "StockReserved.2"));
        assert_ne!(id, derived_id(Uuid::from_u128(cause.as_u128() + 1), "StockReserved.1"));
        // A release that derives another id would answer copies of old events with new ones.
        assert_eq!(id.to_string(), "01905a3e-7b1c-8181-acaa-8a99330b424d");
    }

    #[test]
    fn time_ordered_ids_spread_evenly_over_the_lanes() {
        let mut counts = [0_u32; LANES as usize];
        for _ in 0..16_000 {
            counts[usize::try_from(lane(Uuid::now_v7())).unwrap()] += 1;
        }
        for (lane, count) in counts.iter().enumerate() {
            assert!(
                (700..1300).contains(count),
                "lane {lane} got {count} of 16,000, about 1,000 were expected"
            );
        }
    }

    #[test]
    fn lane_of_an_id_never_changes() {
        // Pending events in existing outboxes were written with these lanes.
        assert_eq!(lane(Uuid::from_u128(0)), 9);
        assert_eq!(lane(Uuid::from_u128(0x0190_5a3e_7b1c_7000_8000_0000_0000_0001)), 0);
    }
}
