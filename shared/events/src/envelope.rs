use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Data, TraceContext, lane};

/// One event as it travels: CloudEvents 1.0 attribute names in JSON ("structured mode").
///
/// <https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md>
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Envelope<Data> {
    /// Always `1.0`.
    #[schemars(extend("const" = "1.0"))]
    pub specversion: String,
    /// The event's identity, the same at every attempt to publish: what consumers recognise a duplicate by.
    pub id: Uuid,
    /// Which service says so, such as `/orders`.
    pub source: String,
    /// What happened, such as `OrderCreated`.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The aggregate that it happened to.
    pub subject: Uuid,
    /// When, by the writer's clock. For people: nothing here orders or expires by it.
    #[serde(with = "time::serde::rfc3339")]
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub time: OffsetDateTime,
    /// Always `application/json`.
    #[schemars(extend("const" = "application/json"))]
    pub datacontenttype: String,
    /// The schema of `data`, ending with its version: `urn:shop:OrderCreated:1`.
    pub dataschema: String,
    /// The aggregate's version after this event: 1, 2, 3 … without gaps.
    #[schemars(range(min = 1))]
    pub sequence: i32,
    /// W3C Trace Context of the request that caused the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The body.
    pub data: Data,
}

/// What `dataschema` says of one version of one event.
pub(crate) fn schema_name(event_type: &str, version: i16) -> String {
    format!("urn:shop:{event_type}:{version}")
}

/// An event about to be written: the columns of an outbox row.
///
/// The body is rendered here, once, when the event happens. What is published later are these bytes: the relay never
/// looks at the business tables, which may have moved on by then.
#[derive(Debug, Clone)]
pub struct Draft {
    /// Identity of the event: UUIDv7.
    pub event_id: Uuid,
    /// Kind of aggregate, such as `order`.
    pub aggregate_type: &'static str,
    /// Which one.
    pub aggregate_id: Uuid,
    /// Its version after this event.
    pub aggregate_version: i32,
    /// Name of the event.
    pub event_type: &'static str,
    /// Version of the body's schema.
    pub schema_version: i16,
    /// The whole envelope as JSON text.
    pub payload: String,
    /// Message headers as a JSON object.
    pub headers: serde_json::Value,
    /// The aggregate's lane.
    pub lane: i16,
}

impl Draft {
    /// Renders one of our bodies: its type says its name and version.
    ///
    /// # Errors
    /// When `data` cannot be written as JSON, which none of our bodies can bring about.
    pub fn of<D: Data>(
        source: &str,
        aggregate: (&'static str, Uuid, i32),
        trace: &TraceContext,
        data: &D,
    ) -> Result<Self, serde_json::Error> {
        Self::new(source, aggregate, (D::TYPE, D::VERSION), trace, data)
    }

    /// Renders `data` into an envelope and the row that will hold it.
    ///
    /// # Errors
    /// When `data` cannot be written as JSON.
    pub fn new(
        source: &str,
        aggregate: (&'static str, Uuid, i32),
        kind: (&'static str, i16),
        trace: &TraceContext,
        data: &impl Serialize,
    ) -> Result<Self, serde_json::Error> {
        let (aggregate_type, aggregate_id, aggregate_version) = aggregate;
        let (event_type, schema_version) = kind;
        let event_id = Uuid::now_v7();
        let traceparent = trace.to_string();
        let envelope = Envelope {
            specversion: "1.0".into(),
            id: event_id,
            source: source.into(),
            event_type: event_type.into(),
            subject: aggregate_id,
            time: OffsetDateTime::now_utc(),
            datacontenttype: "application/json".into(),
            dataschema: schema_name(event_type, schema_version),
            sequence: aggregate_version,
            traceparent: Some(traceparent.clone()),
            data,
        };
        Ok(Self {
            event_id,
            aggregate_type,
            aggregate_id,
            aggregate_version,
            event_type,
            schema_version,
            payload: serde_json::to_string(&envelope)?,
            headers: serde_json::json!({ "traceparent": traceparent }),
            lane: lane(aggregate_id),
        })
    }
}

/// The topic under which an event type is published: `OrderCreated` becomes `order.created`.
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
    fn an_event_type_names_its_topic() {
        assert_eq!(routing_key("OrderCreated"), "order.created");
        assert_eq!(routing_key("StockReleased"), "stock.released");
    }
}
