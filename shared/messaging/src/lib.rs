//! The ports between the services and a broker, and what both sides share: back-off, a limit of rounds and lanes. No I/O.
//!
//! - [`Publisher`]: publishes messages and returns the outcome of each. `broker` implements it over RabbitMQ.
//! - [`Handler`]: applies events. Each service implements it.
//! - [`DeadLetterStore`]: keeps messages that could not be applied. `inbox` implements it over a table.
//! - [`Backoff`]: exponential back-off with full jitter.
//! - [`RoundLimiter`]: fewer and larger rounds of work under load.
//! - [`lane()`]: the lane of an aggregate, a fixed share of all aggregates.
//! - [`crash_points`]: named places where a crash is interesting. [`replay`]: what an operator selects.

mod backoff;
pub mod crash_points;
mod lane;
mod ports;
pub mod replay;
mod round_limiter;

pub use backoff::Backoff;
pub use lane::{LANES, lane};
pub use ports::{
    Applied, BrokerUnavailable, DeadLetter, DeadLetterStore, Failure, Handler, Incoming, Outgoing,
    PublishOutcome, Publisher, Refusal, SharedHandler,
};
pub use round_limiter::RoundLimiter;
