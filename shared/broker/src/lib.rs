//! RabbitMQ, and nothing but RabbitMQ: the only crate that names `lapin`.
//!
//! - [`Endpoint`]: how a connection is made, with a deadline around every wait.
//! - [`topology`]: the exchanges and queues, declared by everyone who connects; a guest brings a queue of its own.
//! - [`asyncapi`]: the same, and what is said there, as a document for others.
//! - [`Publisher`]: pipelined publishing with confirms, and returns matched by message id.
//! - [`Consumer`]: groups of deliveries, handed to a handler, acknowledged after its commit.
//! - [`Collector`]: dead letters, handed to a shelf, acknowledged after its commit.
//! - [`answers`] and [`group`]: what confirms and deliveries mean, apart from where they come from.
//! - [`Link`]: whether the broker answers, for health and metrics; logged once per change.
//!
//! lapin can reconnect by itself. It is not asked to: confirms that were in flight then stay pending through the whole
//! outage, and a consumer whose channel the broker closed hangs for ever. Publisher and consumer here are supervisors
//! of their own: open, work until any error or deadline, drop everything, back off, open again.

pub mod answers;
pub mod asyncapi;
mod channel_line;
mod collector;
mod connect;
mod consumer;
mod dead_letters;
pub mod group;
mod letter;
mod link;
mod publisher;
pub mod topology;

pub use collector::Collector;
pub use connect::{Endpoint, Error};
pub use consumer::{Consumer, ConsumerOptions};
pub use link::Link;
pub use publisher::Publisher;
