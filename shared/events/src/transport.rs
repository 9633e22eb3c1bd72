//! The ports between the services and a broker: what a publisher and a handler must be able to say.
//!
//! They are traits because there are two implementers on each side: RabbitMQ and the tests' scripted broker for
//! [`Publisher`], the services' handlers for [`Handler`], the inbox's table and the tests' list for [`Shelf`].

use std::{error::Error, future::Future};

use uuid::Uuid;

use crate::Event;

/// One message to publish.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The event's id: the message's `message_id`, the same at every attempt.
    pub id: Uuid,
    /// The event's type.
    pub event_type: String,
    /// The envelope, as it was written into the outbox.
    pub body: Vec<u8>,
    /// W3C trace context for the message's headers.
    pub traceparent: Option<String>,
}

/// What became of one message that was handed to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The broker has it, and will not lose it. The only outcome that settles an event.
    Confirmed,
    /// The broker said no to this message. That counts as an attempt.
    Refused(Refusal),
    /// Nobody knows: the connection or the patience ended before an answer came. The broker may have it. It is
    /// published again with the same id, and consumers drop the second copy. Burns no attempt.
    Unknown,
}

/// Why the broker, or the publisher on its behalf, refused one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Negative acknowledgement: a queue is full or failing.
    #[error("the broker refused it")]
    Nacked,
    /// Mandatory, and no queue is bound for it.
    #[error("no queue is bound for it")]
    Unroutable,
    /// Larger than what we send; a broker would close the channel over it, and take the whole batch along.
    #[error("larger than the limit")]
    TooLarge,
}

impl Refusal {
    /// A short, stable name, for metrics.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Nacked => "nacked",
            Self::Unroutable => "unroutable",
            Self::TooLarge => "too-large",
        }
    }
}

/// The broker cannot be reached, or does not answer.
#[derive(Debug, thiserror::Error)]
#[error("the broker is away: {0}")]
pub struct Away(pub String);

/// Something that can publish with confirms.
pub trait Publisher: Send {
    /// Makes sure that the broker is there, connecting if need be. Asked before anything is claimed, so that a broker
    /// that is away costs neither locks nor attempts. Ends by itself within a few seconds.
    ///
    /// # Errors
    /// [`Away`]: ask again later.
    fn ready(&mut self) -> impl Future<Output = Result<(), Away>> + Send;

    /// Publishes all, in order, and waits for the broker's answers. One outcome for each message, in the same order.
    /// Ends by itself within the confirm deadline.
    fn publish(&mut self, batch: &[Outgoing]) -> impl Future<Output = Vec<Outcome>> + Send;
}

/// One message that arrived, not yet looked into.
#[derive(Debug, Clone, Default)]
pub struct Incoming {
    /// The AMQP property, if it was set.
    pub message_id: Option<String>,
    /// W3C trace context from the headers, if there was one.
    pub traceparent: Option<String>,
    /// The raw body.
    pub body: Vec<u8>,
}

/// What a handler did with a group of events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// Events whose effect was committed now.
    pub first: usize,
    /// Events whose effect had been committed before: nothing was done.
    pub duplicates: usize,
}

/// Why a handler could not apply a group. The consumer decides by it what becomes of the messages.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Not this event's fault, and it will pass: the database is away. Wait; burn nothing.
    #[error("temporary: {0}")]
    Temporary(#[source] Box<dyn Error + Send + Sync>),
    /// This event can never be applied. Set it aside at once.
    #[error("permanent: {0}")]
    Permanent(#[source] Box<dyn Error + Send + Sync>),
    /// Nobody knows. Try again, a few times, then set it aside.
    #[error("unexpected: {0}")]
    Unexpected(#[source] Box<dyn Error + Send + Sync>),
}

/// A consumer's side of the bargain.
pub trait Handler: Send + Sync + 'static {
    /// Applies all of a group in one transaction, or nothing of it. Whoever calls it acknowledges after it has
    /// returned `Ok`, never before: the commit comes first.
    ///
    /// # Errors
    /// [`Failure`] says what should become of the group.
    fn apply(&self, group: &[Event]) -> impl Future<Output = Result<Applied, Failure>> + Send;
}

/// A message out of a queue of dead letters, as it was found there.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetter {
    /// The queue whose consumer could not apply it.
    pub queue: &'static str,
    /// What this arrival is recognised by, should it be handed over a second time; `None` if it bears no mark.
    pub arrival: Option<String>,
    /// The AMQP property, if it was set.
    pub message_id: Option<String>,
    /// A short, stable name of what was wrong.
    pub reason: String,
    /// The same as a sentence.
    pub detail: String,
    /// All headers, as a JSON object.
    pub headers: serde_json::Value,
    /// The key under which it was published first.
    pub routing_key: String,
    /// The original bytes.
    pub body: Vec<u8>,
}

/// Where dead letters are put for an operator to look at: the inbox's table, and the tests' list.
pub trait Shelf: Send + Sync + 'static {
    /// Keeps a letter for good. Whoever calls it acknowledges after it has returned `Ok`, never before. Called again
    /// with the same letter, it does nothing and says that all is well.
    ///
    /// # Errors
    /// [`Failure::Temporary`]: try again. Anything else: this letter cannot be kept, and stays in its queue.
    fn keep(&self, letter: &DeadLetter) -> impl Future<Output = Result<(), Failure>> + Send;
}
