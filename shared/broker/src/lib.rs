//! RabbitMQ: the only crate of the services that names `lapin`.
//!
//! - [`Endpoint`]: opens connections, with a deadline around every wait.
//! - [`topology`]: the exchanges and queues, which every client declares.
//! - [`ConfirmingPublisher`]: pipelined publishing with confirms; returns are matched by message id.
//! - [`Consumer`]: receives groups of deliveries, acknowledges them after the handler's commit, and saves what can never be
//!   applied.
//! - [`DeadLetterCollector`]: saves what the broker itself has put into a dead-letter queue.
//! - [`ConnectionStatus`]: whether the broker answers, for health and metrics.
//!
//! lapin's automatic recovery is not used: confirms in flight would stay pending through the whole outage, and a consumer
//! whose channel the broker closed would hang for ever. Publisher and consumer supervise their own connections: open, work
//! until any error or deadline, drop everything, back off, open again.

mod connect;
mod connection_status;
mod consumer;
mod dead_letter;
mod dead_letter_collector;
mod delivery_channel;
mod error;
mod publish_span;
mod publisher;
mod replies;
pub mod topology;

pub use connect::Endpoint;
pub use connection_status::ConnectionStatus;
pub use consumer::{Consumer, ConsumerOptions};
pub use dead_letter_collector::DeadLetterCollector;
pub use error::Error;
pub use publisher::ConfirmingPublisher;
pub use replies::Fault;
