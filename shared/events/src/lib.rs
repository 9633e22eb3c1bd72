//! What the services say to each other, and the shape of what carries it. No I/O happens here.
//!
//! - [`Envelope`]: one event as it travels, with CloudEvents 1.0 attribute names.
//! - [`OrderCreated`] and [`OrderCancelled`], the bodies: one file each, with the rules that a body must keep.
//! - [`Contract`]: what readers outside this house may rely upon, as JSON Schema.
//! - [`decode()`]: from the bytes of a message to an [`Event`], or the reason why not.
//! - [`transport`]: the ports between the services and a broker. RabbitMQ stands behind them in `shared/broker`.
//! - [`lane()`]: which share of all aggregates an aggregate belongs to.
//! - [`TraceContext`]: one trace from the HTTP request through the outbox row to the last effect.

mod backoff;
mod contract;
mod decode;
mod envelope;
mod lane;
mod order_cancelled;
mod order_created;
mod trace_context;
pub mod transport;

pub use backoff::Backoff;
pub use contract::Contract;
pub use decode::{Body, Event, Rejection, decode};
pub use envelope::{Draft, Envelope, routing_key};
pub use lane::{LANES, lane};
pub use order_cancelled::OrderCancelled;
pub use order_created::{Line, Money, OrderCreated};
pub use trace_context::TraceContext;
