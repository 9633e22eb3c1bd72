//! The contracts between the services: the format of events, and what readers may rely on. No I/O. `contracts/` has the
//! JSON Schema of each event, for readers in other languages; `tests/contracts` holds the types to them.
//!
//! - [`Envelope`]: an event as it is sent, with CloudEvents 1.0 attributes.
//! - [`OrderCreated`], [`OrderConfirmed`], [`OrderCancelled`] (written by orders), [`StockReserved`], [`StockRejected`],
//!   [`StockReleased`] (inventory), [`PaymentCaptured`], [`PaymentDeclined`], [`PaymentRefunded`] (billing): the bodies.
//!   [`Data`] is what all bodies have in common.
//! - [`NewEvent`]: an event that is about to be written into an outbox, with the [`lane`] of its aggregate. [`decode()`]: from a
//!   message to an [`Event`], and [`Origin`]: who has sent it.
//! - [`TraceContext`]: ties the HTTP request, the outbox row, the message and the effects together. [`spans`]: when each of
//!   them was, for distributed tracing.

mod answers;
mod decode;
mod envelope;
mod order;
pub mod spans;

pub use answers::{
    PaymentCaptured, PaymentDeclined, PaymentRefunded, StockRejected, StockReleased, StockReserved,
};
pub use decode::{Body, Event, FORGED, Origin, Rejection, decode};
pub use envelope::{Data, Envelope, LANES, NewEvent, derived_id, lane, routing_key};
pub use order::{Cause, Line, Money, OrderCancelled, OrderCancelledV1, OrderConfirmed, OrderCreated};
pub use spans::TraceContext;
