//! What the services say to each other, and the shape of what carries it. No I/O happens here.
//!
//! - [`Envelope`]: one event as it travels, with CloudEvents 1.0 attribute names.
//! - [`OrderCreated`], [`OrderConfirmed`], [`OrderCancelled`]; [`StockReserved`] and what else inventory answers;
//!   [`PaymentCaptured`] and what else billing does: the bodies, with the rules ([`Data`]) that each must keep.
//! - [`Contract`]: what readers outside this house may rely upon, as JSON Schema.
//! - [`decode()`]: from the bytes of a message to an [`Event`], or the reason why not.
//! - [`transport`]: the ports between the services and a broker. RabbitMQ stands behind them in `shared/broker`.
//! - [`lane()`]: which share of all aggregates an aggregate belongs to.
//! - [`TraceContext`]: one trace from the HTTP request through the outbox row to the last effect.

mod backoff;
mod body;
mod contract;
mod decode;
mod envelope;
mod lane;
mod order_cancelled;
mod order_confirmed;
mod order_created;
mod payment;
mod stock;
mod trace_context;
pub mod transport;

pub use backoff::Backoff;
pub use body::{Body, Data};
pub use contract::Contract;
pub use decode::{Event, Rejection, decode};
pub use envelope::{Draft, Envelope, routing_key};
pub use lane::{LANES, lane};
pub use order_cancelled::{Cause, OrderCancelled, OrderCancelledV1};
pub use order_confirmed::OrderConfirmed;
pub use order_created::{Line, Money, OrderCreated};
pub use payment::{PaymentCaptured, PaymentDeclined, PaymentRefunded};
pub use stock::{StockRejected, StockReleased, StockReserved};
pub use trace_context::TraceContext;
