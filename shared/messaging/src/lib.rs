//! The relay and the consumer without their servers: what is done in which order. Neither SQL nor AMQP, and no I/O: the
//! simulation runs this code. In reading order:
//!
//! - [`Relay`]: claims a batch by lanes, publishes it, marks what was confirmed ([`Relay::step`]), and repeats
//!   ([`Relay::run`]). *Publish, then mark.*
//! - [`Store`], [`Publisher`]: what the relay needs from an outbox and from a broker. `outbox` and `rabbitmq` have them.
//! - [`Wake`]: wake-ups, so that a new event does not wait for the next poll. Nothing relies on them.
//! - [`Handler`], [`DeadLetterStore`]: what each service and `inbox` implement.
//! - [`settle`]: what a consumer does with its deliveries. *Commit, then acknowledge.*
//! - [`confirms`]: what a batch of publisher confirms means. Returned messages are matched by their id.
//! - [`Backoff`]: exponential back-off with full jitter.
//! - [`RoundLimiter`]: fewer and larger rounds of work under load. Optional.
//! - [`replay`]: what an operator selects. [`crash_points`]: named places where a crash is interesting.

pub mod confirms;
pub mod crash_points;
mod handler;
mod pauses;
mod publisher;
mod relay;
pub mod replay;
pub mod settle;
mod store;
mod wake;

pub use handler::{Applied, DeadLetter, DeadLetterStore, Failure, Handler, Incoming, SharedHandler};
pub use pauses::{Backoff, RoundLimiter};
pub use publisher::{BrokerUnavailable, Outgoing, PublishOutcome, Publisher, Refusal};
pub use relay::{Relay, RelayOptions, RelayStatus, Step};
pub use store::{Claim, ClaimedEvent, Error, MAX_NACKED_ATTEMPTS, OutboxTransaction, RETRY_SECONDS, Store};
pub use wake::Wake;
