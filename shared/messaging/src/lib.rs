//! The ports between the services and a broker, and two rules that both sides share: back-off and lanes. No I/O.
//!
//! - [`Publisher`]: publishes messages and returns the outcome of each. `broker` implements it over RabbitMQ.
//! - [`Handler`]: applies events. Each service implements it.
//! - [`DeadLetterStore`]: keeps messages that could not be applied. `inbox` implements it over a table.
//! - [`Backoff`]: exponential back-off with full jitter.
//! - [`lane()`]: the lane of an aggregate, a fixed share of all aggregates.

mod backoff;
mod lane;
mod ports;

pub use backoff::Backoff;
pub use lane::{LANES, lane};
pub use ports::{
    Applied, BrokerUnavailable, DeadLetter, DeadLetterStore, Failure, Handler, Incoming, Outgoing,
    PublishOutcome, Publisher, Refusal,
};
