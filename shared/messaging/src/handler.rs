//! What a consumer receives, and what it needs from a service.

use std::{collections::HashSet, error::Error, future::Future, pin::Pin, sync::Arc};

use events::{Event, Origin};
use uuid::Uuid;

/// A received message that is not decoded yet.
#[derive(Debug, Clone, Copy, Default)]
pub struct Incoming<'a> {
    /// The AMQP property, if it is set.
    pub message_id: Option<&'a str>,
    /// W3C trace context, from the headers.
    pub traceparent: Option<&'a str>,
    pub body: &'a [u8],
    /// How often the broker has delivered it before, without an answer.
    pub earlier_deliveries: u32,
    /// Who has sent it. `None`: that was checked before.
    pub origin: Option<Origin<'a>>,
}

impl Incoming<'_> {
    pub fn decode(&self) -> Result<Event, events::Rejection> {
        let event = events::decode(self.body, self.message_id, self.traceparent)?;
        self.origin.map_or(Ok(()), |origin| origin.check(&event))?;
        Ok(event)
    }
}

/// What a handler did with a group of events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// Events whose effect was committed now.
    pub first: usize,
    /// Events whose effect had been committed before: nothing was done.
    pub duplicates: usize,
}

/// Why a handler could not apply a group. It decides what the consumer does with the messages.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The cause is not the event, and it will pass: the database is unavailable. The consumer waits.
    #[error("temporary: {0}")]
    Temporary(#[source] Box<dyn Error + Send + Sync>),
    /// It took too long. Fewer events at once may be fast enough: the consumer halves the group.
    #[error("too slow: {0}")]
    TooSlow(#[source] Box<dyn Error + Send + Sync>),
    /// This event can never be applied. The consumer sets it aside at once.
    #[error("permanent: {0}")]
    Permanent(#[source] Box<dyn Error + Send + Sync>),
    /// The cause is not known. The consumer tries a few more times, then sets the event aside.
    #[error("unexpected: {0}")]
    Unexpected(#[source] Box<dyn Error + Send + Sync>),
    /// An older event of the aggregate of each of these is a dead letter. The consumer sets them aside too, in their order,
    /// and applies the others.
    #[error("behind a dead letter of the same aggregate: {0:?}")]
    Behind(HashSet<Uuid>),
}

/// Applies events to a service's tables.
pub trait Handler: Send + Sync + 'static {
    /// Applies a whole group in one transaction, or nothing. The consumer acknowledges after this has returned `Ok`, never
    /// before.
    fn apply(&self, group: &[Event]) -> impl Future<Output = Result<Applied, Failure>> + Send;
}

/// A handler of any type. What calls a handler is then compiled once, and not again in each program with its own type.
#[derive(Clone)]
pub struct SharedHandler(Arc<Apply>);

type Apply = dyn for<'group> Fn(&'group [Event]) -> Applying<'group> + Send + Sync;
type Applying<'group> = Pin<Box<dyn Future<Output = Result<Applied, Failure>> + Send + 'group>>;

impl SharedHandler {
    pub fn new(handler: impl Handler) -> Self {
        let handler = Arc::new(handler);
        Self(Arc::new(move |group| {
            let handler = handler.clone();
            Box::pin(async move { handler.apply(group).await })
        }))
    }
}

impl Handler for SharedHandler {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        (self.0)(group).await
    }
}

/// A message that could not be applied.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetter {
    /// The queue whose consumer could not apply it.
    pub queue: &'static str,
    /// Identifies a dead letter that the broker made, so that a second delivery of it is recognized. `None` if our consumer
    /// has set it aside.
    pub arrival: Option<String>,
    /// The AMQP property, if it is set.
    pub message_id: Option<String>,
    /// A short, stable name of what was wrong.
    pub reason: String,
    /// The reason as a sentence.
    pub detail: String,
    /// All headers as a JSON object.
    pub headers: serde_json::Value,
    /// The routing key under which it was first published.
    pub routing_key: String,
    /// The original bytes.
    pub body: Vec<u8>,
}

/// Keeps dead letters for an operator, and counts attempts at events that may crash their consumer.
pub trait DeadLetterStore: Send + Sync + 'static {
    /// Saves a dead letter durably. The message is acknowledged after this has returned `Ok`, never before. Saving the
    /// same dead letter again does nothing. Any failure but a temporary one means that it cannot be saved.
    fn save(&self, letter: &DeadLetter) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Saves an event of [`Failure::Behind`]. `false`: it is not saved, because the older dead letter has been resolved
    /// in the meantime, and the event can be applied. A temporary failure may mean that too many events wait already.
    fn save_behind(&self, letter: &DeadLetter) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Records durably that an attempt at an event begins, and returns how many have begun and not ended, with this one. If
    /// the event crashes its consumer, the number grows with each crash.
    fn begin_attempt(&self, queue: &str, event: Uuid) -> impl Future<Output = Result<u32, Failure>> + Send;

    /// Forgets all attempts at an event, since its consumer has survived one.
    fn end_attempts(&self, queue: &str, event: Uuid) -> impl Future<Output = Result<(), Failure>> + Send;
}
