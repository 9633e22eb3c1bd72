use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Envelope, OrderCancelled, OrderCreated, TraceContext, envelope::SCHEMA_PREFIX, transport::Incoming,
};

/// An event that arrived and can be acted upon.
#[derive(Debug, Clone)]
pub struct Event {
    /// Its identity.
    pub id: Uuid,
    /// Its type, such as `OrderCreated`.
    pub event_type: &'static str,
    /// The aggregate that it happened to.
    pub aggregate_id: Uuid,
    /// The aggregate's version after it.
    pub aggregate_version: i32,
    /// When it happened, by the writer's clock.
    pub time: OffsetDateTime,
    /// The trace of the request that caused it; a new one if the message carried none that is valid.
    pub trace: TraceContext,
    /// What happened.
    pub body: Body,
}

/// The bodies that are known here.
#[derive(Debug, Clone)]
pub enum Body {
    /// An order was accepted.
    OrderCreated(OrderCreated),
    /// An order was taken back.
    OrderCancelled(OrderCancelled),
}

/// Why a message can never be acted upon. Trying again would not help: it goes to the dead letters, with this reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The body is not an envelope: not JSON, truncated, too deep, an attribute missing or of the wrong type.
    #[error("malformed: {0}")]
    Malformed(String),
    /// The message's `message_id` is missing or is not the envelope's `id`: one of the two would dedupe wrongly.
    #[error("message_id {message_id:?} is not the event's id {id}")]
    IdMismatch {
        /// The AMQP property.
        message_id: Option<String>,
        /// The envelope's attribute.
        id: Uuid,
    },
    /// No reader here knows this type of event.
    #[error("unknown event type {0:?}")]
    UnknownType(String),
    /// The type is known, this version of it is not: probably a newer writer. Set aside, never dropped.
    #[error("unknown schema {0:?}")]
    UnknownSchema(String),
    /// Well-formed, but it contradicts itself.
    #[error("inconsistent: {0}")]
    Inconsistent(String),
}

impl Rejection {
    /// A short, stable name: for metrics and for the dead letter's header.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::IdMismatch { .. } => "id-mismatch",
            Self::UnknownType(_) => "unknown-type",
            Self::UnknownSchema(_) => "unknown-schema",
            Self::Inconsistent(_) => "inconsistent",
        }
    }
}

/// From the bytes of a message to an event. A message is input from outside: nothing about it is taken for granted.
///
/// # Errors
/// A [`Rejection`] says why the message can never be acted upon.
pub fn decode(message: &Incoming) -> Result<Event, Rejection> {
    let envelope: Envelope<&RawValue> =
        serde_json::from_slice(&message.body).map_err(|error| Rejection::Malformed(error.to_string()))?;
    if envelope.specversion != "1.0" {
        return Err(Rejection::Malformed(format!("specversion {:?} is not 1.0", envelope.specversion)));
    }
    if envelope.id.is_nil() || envelope.sequence < 1 {
        return Err(Rejection::Malformed("id is nil or sequence is below 1".into()));
    }
    if message.message_id.as_deref() != Some(envelope.id.to_string().as_str()) {
        return Err(Rejection::IdMismatch { message_id: message.message_id.clone(), id: envelope.id });
    }
    let (event_type, body) = match envelope.event_type.as_str() {
        OrderCreated::TYPE => {
            let body: OrderCreated = body_of(&envelope, OrderCreated::VERSION)?;
            body.check(envelope.subject).map_err(Rejection::Inconsistent)?;
            (OrderCreated::TYPE, Body::OrderCreated(body))
        }
        OrderCancelled::TYPE => {
            let body: OrderCancelled = body_of(&envelope, OrderCancelled::VERSION)?;
            body.check(envelope.subject).map_err(Rejection::Inconsistent)?;
            (OrderCancelled::TYPE, Body::OrderCancelled(body))
        }
        other => return Err(Rejection::UnknownType(other.chars().take(100).collect())),
    };
    let traceparent = message.traceparent.as_deref().or(envelope.traceparent.as_deref());
    Ok(Event {
        id: envelope.id,
        event_type,
        aggregate_id: envelope.subject,
        aggregate_version: envelope.sequence,
        time: envelope.time,
        trace: traceparent.and_then(TraceContext::parse).unwrap_or_else(TraceContext::root),
        body,
    })
}

/// Reads `data`, if it is of the version that is known here.
fn body_of<Data: DeserializeOwned>(envelope: &Envelope<&RawValue>, version: i16) -> Result<Data, Rejection> {
    if envelope.dataschema != format!("{SCHEMA_PREFIX}{}:{version}", envelope.event_type) {
        return Err(Rejection::UnknownSchema(envelope.dataschema.chars().take(100).collect()));
    }
    serde_json::from_str(envelope.data.get()).map_err(|error| Rejection::Malformed(format!("data: {error}")))
}
