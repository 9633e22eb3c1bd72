//! RabbitMQ: the only crate of the services that names `lapin`. In reading order:
//!
//! - [`queues`]: the exchanges and queues, which every service declares.
//! - [`ConfirmingPublisher`]: pipelined publishing with confirms.
//! - [`Consumer`]: receives groups of deliveries, and acknowledges them after the handler's commit.
//! - [`DeadLetterCollector`]: saves what the broker itself has put into a dead-letter queue.
//! - [`ConnectionStatus`]: whether each of them can work, for health and metrics.
//! - [`Endpoint`]: opens connections; `number.rs` checks them at the start, and changes the number of partitions. [`Error`]:
//!   failed requests, each with a deadline, and whose fault they are.
//!
//! What confirms and deliveries mean is in `messaging`, apart from AMQP.
//!
//! lapin's automatic recovery is not used: confirms in flight would stay pending through the whole outage, and a consumer
//! whose channel the broker closed would hang forever. Publisher and consumer supervise their own connections: open, work
//! until any error or deadline, drop everything, back off, open again at the next node.

mod connect;
mod connection_status;
mod consumer;
mod dead_letters;
mod error;
mod number;
mod publisher;
pub mod queues;
mod topology;

pub use connect::Endpoint;
pub use connection_status::ConnectionStatus;
pub use consumer::Consumer;
pub use dead_letters::DeadLetterCollector;
pub use error::{Error, Fault};
pub use publisher::ConfirmingPublisher;
