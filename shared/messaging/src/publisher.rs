//! What a relay needs from a broker.

use uuid::Uuid;

/// A message to publish.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The event's id, sent as `message_id`: the same at every attempt, so that consumers recognize a duplicate.
    pub id: Uuid,
    pub event_type: String,
    /// The lane of the event's aggregate, which decides its partition.
    pub lane: i16,
    /// The envelope as it was written into the outbox.
    pub body: Vec<u8>,
    /// W3C trace context, for the message's headers.
    pub traceparent: Option<String>,
}

/// The outcome of publishing one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishOutcome {
    /// The broker has stored it. The only outcome after which an event is marked as published.
    Confirmed,
    /// The message must not be published again at once. Counts as an attempt.
    Refused(Refusal),
    /// No answer came before the deadline or the end of the connection: the broker may have it. The event is published
    /// again with the same id, and consumers drop the second copy. Does not count as an attempt.
    Unknown,
}

/// Why one message was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Negative acknowledgement: a queue is full or failing.
    #[error("the broker sent a negative acknowledgement")]
    Nacked,
    /// The message is mandatory and no queue is bound for it.
    #[error("no queue is bound for it")]
    Unroutable,
    /// Not confirmed before the deadline, although the broker still opens channels: a queue is stuck. The message may be in its
    /// other queues, so it waits as after a refusal: as unknown it would be sent to them again at once.
    #[error("not confirmed in time by a broker that answers")]
    Unconfirmed,
    /// Its body or a header is larger than the publisher's limit. The broker would close the channel, and the whole batch
    /// would be unconfirmed.
    #[error("larger than the limit")]
    TooLarge,
    /// The broker closes the channel over it: the topic is not permitted, or the broker has a lower limit of size.
    #[error("the broker closes the channel over it")]
    Rejected,
}

impl Refusal {
    /// Whether the event itself may be to blame, so that no retry may ever succeed. A negative acknowledgement, or none, is
    /// about a queue, and it passes.
    pub fn may_be_final(self) -> bool {
        !matches!(self, Self::Nacked | Self::Unconfirmed)
    }

    /// A short, stable name for metrics.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Nacked => "nacked",
            Self::Unconfirmed => "unconfirmed",
            Self::Unroutable => "unroutable",
            Self::TooLarge => "too-large",
            Self::Rejected => "rejected",
        }
    }
}

/// The broker cannot be reached or does not answer.
#[derive(Debug, thiserror::Error)]
#[error("the broker is unavailable: {0}")]
pub struct BrokerUnavailable(pub String);

/// Publishes messages with publisher confirms.
pub trait Publisher: Send {
    /// Checks that the broker is reachable, and connects if necessary, within a few seconds. The relay calls it before it
    /// claims anything, so that an outage costs neither locks nor attempts.
    fn ready(&mut self) -> impl Future<Output = Result<(), BrokerUnavailable>> + Send;

    /// Publishes all messages in order and waits for their confirms, up to the confirm deadline. Returns the outcome of
    /// each.
    fn publish(&mut self, batch: &[&Outgoing]) -> impl Future<Output = Vec<PublishOutcome>> + Send;
}
