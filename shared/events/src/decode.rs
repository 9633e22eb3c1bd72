use std::time::SystemTime;

use serde_json::value::RawValue;
use time::{OffsetDateTime, UtcOffset};
use uuid::Uuid;

use crate::{
    Data, Envelope, OrderCancelled, OrderCancelledV1, OrderConfirmed, OrderCreated, PaymentCaptured,
    PaymentDeclined, PaymentRefunded, StockRejected, StockReleased, StockReserved, TraceContext,
    envelope::{routing_key, schema_name},
};

/// An event that was received, decoded and checked.
#[derive(Debug, Clone)]
pub struct Event {
    pub id: Uuid,
    pub event_type: &'static str,
    /// The service that publishes such events.
    pub source: &'static str,
    /// The aggregate that the event is about: the envelope's `subject`.
    pub aggregate_id: Uuid,
    /// The aggregate's version after the event: the envelope's `sequence`.
    pub aggregate_version: i32,
    /// When it happened, by the writer's clock.
    pub time: OffsetDateTime,
    /// The span of applying it, in the trace of the request that caused it; in a new trace if the message carried none that
    /// is valid. What the event causes has this span as its parent.
    pub trace: TraceContext,
    /// When this process decoded it: applying it begins here.
    pub received: SystemTime,
    pub body: Body,
}

/// A decoded body. A body in an older version is converted to the newest while it is read, so that handlers see only one.
#[derive(Debug, Clone)]
pub enum Body {
    OrderCreated(OrderCreated),
    OrderConfirmed(OrderConfirmed),
    OrderCancelled(OrderCancelled),
    StockReserved(StockReserved),
    StockRejected(StockRejected),
    StockReleased(StockReleased),
    PaymentCaptured(PaymentCaptured),
    PaymentDeclined(PaymentDeclined),
    PaymentRefunded(PaymentRefunded),
}

/// Why a message can never be applied. A retry would not help: the message becomes a dead letter with this reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The body is not an envelope: not JSON, truncated, too deep, an attribute missing or of the wrong type.
    #[error("malformed: {0}")]
    Malformed(String),
    /// The message's `message_id` is missing or is not the envelope's `id`. One of the two would deduplicate wrongly.
    #[error("message_id {message_id:?} is not the event's id {id}")]
    IdMismatch { message_id: Option<String>, id: Uuid },
    /// This build knows no event of this type.
    #[error("unknown event type {0:?}")]
    UnknownType(String),
    /// The type is known and this version is not: the writer is probably newer. Set aside, never dropped.
    #[error("unknown schema {0:?}")]
    UnknownSchema(String),
    /// Well-formed, but the body contradicts itself.
    #[error("inconsistent: {0}")]
    Inconsistent(String),
    /// Its sender is not the service that publishes such events.
    #[error("forged: {0}")]
    Forged(String),
}

impl Rejection {
    /// A short, stable name for metrics and for the dead letter's header.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::IdMismatch { .. } => "id-mismatch",
            Self::UnknownType(_) => "unknown-type",
            Self::UnknownSchema(_) => "unknown-schema",
            Self::Inconsistent(_) => "inconsistent",
            Self::Forged(_) => FORGED,
        }
    }
}

/// The reason of [`Rejection::Forged`].
pub const FORGED: &str = "forged";

/// Who has sent a message, as far as the broker has checked it. A service trusts an event, and not its body alone: each of the
/// others can write any body.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    /// The login that published it: the property `user_id`, in which the broker accepts no other. A release before set none.
    pub user: Option<&'a str>,
    /// The login of the receiver. Services that share one cannot be told apart, and whoever has it could do all that the
    /// receiver does.
    pub own_login: &'a str,
    /// Its routing key, if it came by the exchange of events, where a login may have no more than its own service's keys.
    pub routing_key: Option<&'a str>,
}

impl Origin<'_> {
    /// # Errors
    /// [`Rejection::Forged`], if not the event's service has sent it.
    pub fn check(&self, event: &Event) -> Result<(), Rejection> {
        let (Event { event_type, .. }, service) = (event, event.source.trim_start_matches('/'));
        let problem = match (self.user, self.routing_key) {
            (_, Some(key)) if key != routing_key(event_type) => {
                format!("{event_type} was published as {key}")
            }
            (Some(user), _) if user != service && user != self.own_login => {
                format!("{event_type} was published by the login {user}, and not by {service}")
            }
            (None, None) => format!("the broker has not checked who has published {event_type}"),
            _ => return Ok(()),
        };
        Err(Rejection::Forged(problem))
    }
}

/// Decodes a message's body into an event. A message is input from outside: every part of it is checked. `message_id` and
/// `traceparent` are the message's property and header, outside the body.
pub fn decode(body: &[u8], message_id: Option<&str>, traceparent: Option<&str>) -> Result<Event, Rejection> {
    let envelope: Envelope<&RawValue> =
        serde_json::from_slice(body).map_err(|error| Rejection::Malformed(error.to_string()))?;
    if envelope.specversion != "1.0" {
        return Err(Rejection::Malformed(format!("specversion {:?} is not 1.0", envelope.specversion)));
    }
    if envelope.id.is_nil() || envelope.sequence < 1 {
        return Err(Rejection::Malformed("id is nil or sequence is below 1".into()));
    }
    if message_id != Some(envelope.id.to_string().as_str()) {
        return Err(Rejection::IdMismatch { message_id: message_id.map(str::to_owned), id: envelope.id });
    }
    let (event_type, source, body) = match envelope.event_type.as_str() {
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
    // In UTC, a time of RFC 3339 may be in a year that RFC 3339 cannot write.
    let time =
        envelope.time.checked_to_offset(UtcOffset::UTC).filter(|time| (1..=9999).contains(&time.year()));
    let time =
        time.ok_or_else(|| Rejection::Inconsistent("its time is outside of the years 1 to 9999".into()))?;
    let traceparent = traceparent.or(envelope.traceparent.as_deref());
    Ok(Event {
        id: envelope.id,
        event_type,
        source,
        aggregate_id: envelope.subject,
        aggregate_version: envelope.sequence,
        time,
        trace: TraceContext::child_of(traceparent),
        received: SystemTime::now(),
        body,
    })
}

/// Whether the envelope holds this body, in this version.
fn is<D: Data>(envelope: &Envelope<&RawValue>) -> bool {
    envelope.event_type == D::TYPE && envelope.dataschema == schema_name(D::TYPE, D::VERSION)
}

/// Reads and checks `data`, if it has the version that this build knows.
fn read<D: Data>(
    envelope: &Envelope<&RawValue>,
    into: impl FnOnce(D) -> Body,
) -> Result<(&'static str, &'static str, Body), Rejection> {
    if !is::<D>(envelope) {
        return Err(Rejection::UnknownSchema(envelope.dataschema.chars().take(100).collect()));
    }
    if envelope.source != D::SOURCE {
        return Err(Rejection::Forged(format!("the source of {} is not {}", D::TYPE, D::SOURCE)));
    }
    let malformed = |error| Rejection::Malformed(format!("data: {error}"));
    let data: D = serde_json::from_str(envelope.data.get()).map_err(malformed)?;
    data.check(envelope.subject).map_err(Rejection::Inconsistent)?;
    Ok((D::TYPE, D::SOURCE, into(data)))
}
