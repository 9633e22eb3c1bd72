//! The ports between the services and a broker, and what needs neither SQL nor AMQP. No I/O. In reading order:
//!
//! - [`Publisher`], [`Handler`], [`DeadLetterStore`]: what `rabbitmq`, each service and `inbox` implement.
//! - [`settle`]: what a consumer does with its deliveries. *Commit, then acknowledge.*
//! - [`confirms`]: what a batch of publisher confirms means. Returned messages are matched by their id.
//! - [`Backoff`]: exponential back-off with full jitter.
//! - [`RoundLimiter`]: fewer and larger rounds of work under load. Optional.
//! - [`replay`]: what an operator selects. [`crash_points`]: named places where a crash is interesting.

pub mod confirms;
pub mod crash_points;
mod pauses;
mod ports;
pub mod replay;
pub mod settle;

pub use pauses::{Backoff, RoundLimiter};
pub use ports::{
    Applied, BrokerUnavailable, DeadLetter, DeadLetterStore, Failure, Handler, Incoming, Outgoing,
    PublishOutcome, Publisher, Refusal, SharedHandler,
};
