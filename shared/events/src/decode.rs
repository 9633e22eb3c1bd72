use serde_json::value::RawValue;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Body, Data, Envelope, OrderCancelled, OrderCancelledV1, OrderConfirmed, OrderCreated, PaymentCaptured,
    PaymentDeclined, PaymentRefunded, StockRejected, StockReleased, StockReserved, TraceContext,
    envelope::schema_name, transport::Incoming,
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
        OrderCreated::TYPE => read(&envelope, Body::OrderCreated)?,
        OrderConfirmed::TYPE => read(&envelope, Body::OrderConfirmed)?,
        OrderCancelled::TYPE if is::<OrderCancelledV1>(&envelope) => {
            read(&envelope, |old: OrderCancelledV1| Body::OrderCancelled(old.into()))?
        }
        OrderCancelled::TYPE => read(&envelope, Body::OrderCancelled)?,
        StockReserved::TYPE => read(&envelope, Body::StockReserved)?,
        StockRejected::TYPE => read(&envelope, Body::StockRejected)?,
        StockReleased::TYPE => read(&envelope, Body::StockReleased)?,
        PaymentCaptured::TYPE => read(&envelope, Body::PaymentCaptured)?,
        PaymentDeclined::TYPE => read(&envelope, Body::PaymentDeclined)?,
        PaymentRefunded::TYPE => read(&envelope, Body::PaymentRefunded)?,
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

/// Whether the body is of this type in this version.
fn is<D: Data>(envelope: &Envelope<&RawValue>) -> bool {
    envelope.event_type == D::TYPE && envelope.dataschema == schema_name(D::TYPE, D::VERSION)
}

/// Reads `data`, if it is of the version that is known here.
fn read<D: Data>(
    envelope: &Envelope<&RawValue>,
    into: impl FnOnce(D) -> Body,
) -> Result<(&'static str, Body), Rejection> {
    if !is::<D>(envelope) {
        return Err(Rejection::UnknownSchema(envelope.dataschema.chars().take(100).collect()));
    }
    let malformed = |error| Rejection::Malformed(format!("data: {error}"));
    let data: D = serde_json::from_str(envelope.data.get()).map_err(malformed)?;
    data.check(envelope.subject).map_err(Rejection::Inconsistent)?;
    Ok((D::TYPE, into(data)))
}
