use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Data, TraceContext};

/// An event as it is sent: CloudEvents 1.0 attributes in JSON ("structured mode").
///
/// <https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md>
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Envelope<Data> {
    /// Always `1.0`.
    #[schemars(extend("const" = "1.0"))]
    pub specversion: String,
    /// The event's id, the same at every attempt to publish. Consumers recognise duplicates by it.
    pub id: Uuid,
    /// The service that wrote the event, such as `/orders`.
    pub source: String,
    /// The event's name, such as `OrderCreated`.
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
    /// The schema of `data` and its version, such as `urn:shop:OrderCreated:1`.
    pub dataschema: String,
    /// The aggregate's version after this event: 1, 2, 3 … without gaps.
    #[schemars(range(min = 1))]
    pub sequence: i32,
    /// W3C Trace Context of the request that caused the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The event's body.
    pub data: Data,
}

/// The `dataschema` of one version of one event.
pub(crate) fn schema_name(event_type: &str, version: i16) -> String {
    format!("urn:shop:{event_type}:{version}")
}

/// An event that is about to be written: the columns of an outbox row.
///
/// The body is rendered here, once, when the event happens. The relay publishes these bytes later and never reads the
/// business tables, which may have changed by then.
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// A UUIDv7.
    pub event_id: Uuid,
    /// The kind of aggregate, such as `order`.
    pub aggregate_type: &'static str,
    pub aggregate_id: Uuid,
    /// The aggregate's version after this event.
    pub aggregate_version: i32,
    pub event_type: &'static str,
    /// The version of the body's schema.
    pub schema_version: i16,
    /// The whole envelope, as JSON text.
    pub payload: String,
    /// The message's headers, as a JSON object.
    pub headers: serde_json::Value,
}

impl NewEvent {
    /// Renders a body whose type defines its name, its version and who publishes it. `version` is the aggregate's after this
    /// event.
    ///
    /// # Errors
    /// When `data` cannot be serialised as JSON. That is impossible for the bodies of this crate.
    pub fn of<D: Data>(
        aggregate_id: Uuid,
        version: i32,
        trace: &TraceContext,
        data: &D,
    ) -> Result<Self, serde_json::Error> {
        Self::new(D::SOURCE, (D::AGGREGATE, aggregate_id, version), (D::TYPE, D::VERSION), trace, data)
    }

    /// Renders `data` into an envelope and its outbox row.
    ///
    /// # Errors
    /// When `data` cannot be serialised as JSON.
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
        })
    }
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
}
